"""What the page and the demo say of a comparison: like with like, and worse where it is worse."""

from typing import Any

from fedstill.cli_demo import verdict as demo_verdict
from fedstill.experiment.config import experiment
from fedstill.experiment.metrics import METRICS
from fedstill.experiment.result import Result
from fedstill.report.digest import series_of
from fedstill.report.sections import verdict as opening
from fedstill.report.tables import comparison
from fedstill.report.verdict import judged, sentences


def made(method: str, **models: tuple[float, float, float]) -> Result:
    """One round in which each model has these AMP, FM and WLP."""
    scores = {
        name: {"amp": amp, "fm": fm, "wlp": wlp, "accuracy": None, "accuracy_per_client": [wlp, amp]}
        for name, (amp, fm, wlp) in models.items()
    }
    row: dict[str, Any] = {"round": 1, "models": scores, "bytes": {"down": {}, "up": {"weights": 4000}}}
    row |= {"seconds": {"clients": 1.0}, "active": [0], "missing": {}}
    return Result(experiment({"method": method, "data": "digits", "rounds": 1}).plain(), [row])


AVERAGE = made("fedavg", active=(0.80, 0.001, 0.50), overall=(0.90, 0.002, 0.60))
FUSED = made("fedkf", active=(0.85, 0.002, 0.50), overall=(0.88, 0.003, 0.55))


def test_each_metric_is_better_worse_or_the_same() -> None:
    """Active: AMP 85 > 80, FM 2 > 1 (worse: smaller is fairer), WLP alike."""
    rows = {(row["method"], row["model"]): row for row in comparison([AVERAGE, FUSED])}
    said = judged(rows["fedkf", "active"], rows["fedavg", "active"], METRICS)
    assert said == (
        "better in AMP (85.00 against 80.00 %), worse in FM (2.00 against 1.00 10⁻³), the same in WLP (50.00 %)"
    )


def test_the_demo_says_worse_where_it_is_worse_and_never_mixes_kinds() -> None:
    """FedKF's overall (88) beats FedAvg's active (80), but FedAvg's overall has 90: overall is worse, in all three."""
    lines = demo_verdict(AVERAGE, FUSED).splitlines()
    overall = next(line for line in lines if line.strip().startswith("overall:"))
    assert "worse in AMP (88.00 against 90.00 %) and WLP (55.00 against 60.00 %) and FM (3.00 against 2.00" in overall
    assert "better" not in overall
    active = next(line for line in lines if line.strip().startswith("active:"))
    assert "better in AMP (85.00 against 80.00 %)" in active


def test_the_best_of_each_kind_leads() -> None:
    active, overall = sentences(comparison([AVERAGE, FUSED]), METRICS)
    assert active.startswith("Of the active models fedkf's is better in AMP (85.00 against 80.00 %)")
    assert overall.startswith("Of the overall models fedavg's is better in AMP (90.00 against 88.00 %)")
    assert "one seed, so a small difference may be chance" in overall
    (alone,) = sentences(comparison([made("fedavg", active=(0.8, 0.001, 0.5))]), METRICS)
    assert alone == "The active model of fedavg has AMP 80.00 %, WLP 50.00 %, FM 1.00 10⁻³ after 1 rounds."


def test_the_page_opens_with_it_and_explains_the_kinds() -> None:
    page = opening(series_of([AVERAGE, FUSED]))
    assert "Of the active models fedkf&#x27;s is better in AMP" in page
    assert "active: the average of the models of the clients that took part in the round" in page
    assert "overall: the average of every client&#x27;s latest model" in page
    assert "personal" not in page
