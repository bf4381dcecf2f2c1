"""A metric of one's own is one entry: a run reports it, and everything that shows a run shows it."""

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from smallest import small_experiment, small_method

from fedstill.core.errors import RunError, UsageError
from fedstill.experiment.metrics import Metric, Scorer, Values, metrics
from fedstill.experiment.result import Result
from fedstill.experiment.run import start
from fedstill.report import html, tables, watch
from fedstill.report.logging import scalars
from fedstill.report.terminal import show_result


def median_client(values: Values) -> float:
    return median(value for value in values.each if value is not None)


MEDIAN = Metric("median", "median client", "accuracy of the median client", "‰", 1000.0, 1, 1, None, median_client)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run made where the metric is known, read where it is not."""
    with monkeypatch.context() as known:
        known.setitem(metrics._entries, "median", MEDIAN)
        start(small_experiment(small_method("fedavg"), metrics=("median",)), out=tmp_path, name="own")
    assert "median" not in metrics
    return tmp_path / "own"


def test_every_place_that_shows_a_run_shows_it(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    scores = row["models"]["active"]
    want = median(a for a in scores["accuracy_per_client"] if a is not None)
    assert scores["median"] == want
    shown = f"{1000 * want:.1f}"

    result = Result.read(run)
    assert [m.key for m in result.metrics] == ["amp", "fm", "wlp", "accuracy", "median"]
    assert result.plot("median").axes[0].get_title(loc="left") == "median client ↑ (‰)"
    assert result.to_frame()["median"].iloc[-2] == want
    assert f"<td>{shown}</td>" in result._repr_html_()
    assert result.summary()["models"]["active"]["median"] == want

    show_result(result)
    assert shown in capsys.readouterr().out
    rows, known = tables.comparison([result]), tables.metrics_of([result])
    assert "median client ↑ (‰)" in tables.text(rows, "markdown", known)
    assert "median_mean" in tables.text(rows, "csv", known)

    html.report([run], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert f'data-metric="median">{shown}</td>' in page.replace(' class="best"', "").replace(' class="second"', "")
    assert '"key":"median","title":"median client"' in page
    state = watch.Observatory(tmp_path).state()
    assert [metric["title"] for metric in state["metrics"]][-1] == "median client"
    assert state["runs"][0]["models"]["active"]["median"][-1] == want
    assert scalars(row)["active/median"] == want


def test_the_pages_scripts_name_no_metric() -> None:
    for script in ("page.js", "watch.js", "charts.js"):
        for word in ("AMP", "WLP", '"fm"', '"amp"', "Global test"):
            assert word not in html.asset(script)


def test_an_unknown_metric_is_refused_before_anything_runs() -> None:
    with pytest.raises(UsageError, match="unknown metric 'macro-f2'; did you mean macro-f1"):
        small_experiment(small_method("fedavg"), metric="macro-f2")
    with pytest.raises(UsageError, match="unknown metric 'mdian'"):
        small_experiment(small_method("fedavg"), metrics=("mdian",))


@pytest.mark.parametrize(
    ("over", "why"), [(lambda values: 1 / 0, "ZeroDivisionError"), (lambda values: "x", "ValueError")]
)
def test_one_that_gives_no_number_is_named(over: Any, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(metrics._entries, "broken", Metric("broken", "broken", over=over))
    with pytest.raises(RunError, match=f"^metric broken: gives no number: {why}: "):
        Scorer.of(more=["broken"]).scores([{"accuracy": 0.5}], [2], {"accuracy": 0.5})
