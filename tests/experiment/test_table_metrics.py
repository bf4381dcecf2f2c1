"""A cell's numbers, from results made by hand."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedstill.core.errors import UsageError
from fedstill.experiment.metrics import Metric, metrics
from fedstill.experiment.presets import Preset
from fedstill.experiment.reproduce import Number, plan
from fedstill.experiment.result import Result
from fedstill.experiment.table_metrics import (
    Beyond,
    Untimed,
    check,
    described,
    reading,
    table_metrics,
    to_report,
    which,
)
from fedstill.report.paper_table import ours


def run(amps: list[float], model: str = "active", seconds: float = 2.0, **facts: Any) -> Result:
    """Rounds with these AMPs; accuracy is AMP less 0.1; each round trains for `seconds` and is examined for 9."""
    rows = [
        {
            "round": t + 1,
            "models": {model: {"amp": a, "fm": 0.01, "wlp": a / 2, "accuracy": a - 0.1, "accuracy_median": a - 0.2}},
            "seconds": {"clients": seconds, "evaluate": 9.0},
            "facts": {name: value[t] for name, value in facts.items()},
        }
        for t, a in enumerate(amps)
    ]
    return Result({"method": {"name": "m"}}, rows)


AVG = (run([0.2, 0.4, 0.6, 0.5]), "active")


def test_the_last_round() -> None:
    result = run([0.2, 0.8])
    assert [reading(m, result, "active") for m in ("amp", "wlp", "fm")] == [0.8, 0.4, 0.01]
    assert reading("accuracy", result, "global") == pytest.approx(0.7)  # FedAvg's only model is its global one
    assert reading("personal", result, "active") is None


def test_which_model_a_row_means() -> None:
    assert which(run([0.1], "server"), "global") == ("server", "accuracy")
    assert which(run([0.1], "personal"), "global") == ("personal", "accuracy")
    assert which(run([0.1], "personal"), "median") == ("personal", "accuracy_median")
    assert reading("accuracy", run([0.9], "personal"), "median") == pytest.approx(0.7)
    with pytest.raises(UsageError, match=r"model = 'overall': this run has active"):
        which(run([0.1]), "overall")


def test_global_is_the_model_that_the_method_is_judged_by() -> None:
    """CCVR is judged by `calibrated` (AMP .7), not by FedAvg's `active` (.4); FedAvg by `active`, not by `overall`."""
    models = {"active": {"amp": 0.4}, "overall": {"amp": 0.6}, "calibrated": {"amp": 0.7}}
    rows = [{"round": 1, "models": models, "seconds": {}, "bytes": {}}]
    ccvr, fedavg = (Result({"method": {"name": name}}, rows) for name in ("ccvr", "fedavg"))
    assert (which(ccvr, "global")[0], reading("amp", ccvr, "global")) == ("calibrated", 0.7)
    assert (which(fedavg, "global")[0], reading("amp", fedavg, "global")) == ("active", 0.4)
    assert which(ccvr, "active")[0] == "active", "a row that names a model gets it"
    assert (ccvr.principal, fedavg.principal) == ("calibrated", "overall")
    without = Result({"method": {"name": "fedkf"}}, [{**rows[0], "models": {"active": {"amp": 0.4}}}])
    assert which(without, "global")[0] == "active", "without a memory of all clients FedKF has no overall model"


def test_rounds_to_a_fixed_target_are_of_the_global_test() -> None:
    """Accuracies 0.1, 0.4, 0.6: 0.55 is reached in round 3, 0.7 never."""
    result = run([0.2, 0.5, 0.7])
    assert reading("rounds_to:0.55", result, "active") == 3
    assert reading("rounds_to:0.7", result, "active") == Beyond(3, 3)


def test_rounds_to_fedavgs_last_amp() -> None:
    """FedAvg ends at 0.5 after 4 rounds; another reaches 0.5 in round 2: a speed-up of 4/2. Its own rounds are 4."""
    fast = run([0.1, 0.5, 0.9, 0.9])
    assert reading("rounds_to:fedavg", fast, "active", AVG) == 2
    assert reading("speedup", fast, "active", AVG) == 2
    assert reading("rounds_to:fedavg", AVG[0], "active", AVG) == 4
    assert reading("speedup", AVG[0], "active", AVG) == 1
    assert reading("rounds_to:fedavg", run([0.1, 0.2]), "active", AVG) == Beyond(2, 2)
    assert reading("speedup", run([0.1, 0.2]), "active", AVG) == Beyond(2, 2), "less than 4/2"
    assert reading("rounds_to:fedavg", fast, "active", None) is None


def test_seconds_leave_the_examination_out() -> None:
    """4 rounds of 3 s against FedAvg's 4 × 2 s: 12 s, 1.5 times; FedAvg's AMP in round 2: 6 s, a speed-up of 8/6."""
    slow = run([0.1, 0.5, 0.9, 0.9], seconds=3.0)
    assert reading("seconds", slow, "active", AVG) == 12
    assert reading("slowdown", slow, "active", AVG) == 1.5
    assert reading("seconds_to:fedavg", slow, "active", AVG) == 6
    assert reading("time_speedup", slow, "active", AVG) == pytest.approx(8 / 6)


def test_times_of_a_recorded_run_are_the_processor_s_or_none() -> None:
    """Recorded: 4 rounds in 6 s of the processor, FedAvg's in 5 s: 6/5 times; its AMP in round 2: 3 s, 5/3 as fast.

    The wall's 3 s a round may have been spent beside others, and so may those of a module on the server.
    """
    spent = [{"fuse": 1.0}] * 4
    wall = run([0.1, 0.5, 0.9, 0.9], seconds=3.0, module_seconds=spent)
    mine, usual = replace(wall, recorded=True, cpu_seconds=6.0), replace(AVG[0], recorded=True, cpu_seconds=5.0)
    names = ("seconds", "slowdown", "seconds_to:fedavg", "time_speedup")
    read = [reading(name, mine, "active", (usual, "active")) for name in names]
    assert read == pytest.approx([6.0, 1.2, 3.0, 5 / 3])
    assert reading("seconds:fuse", mine, "active") == Untimed()
    assert reading("seconds:fuse", wall, "active") == 1.0
    blind = replace(mine, cpu_seconds=None)
    assert [reading(name, blind, "active", (usual, "active")) for name in names] == [Untimed()] * 4
    other = (replace(usual, cpu_seconds=None), "active")
    assert [reading(name, mine, "active", other) for name in ("slowdown", "time_speedup")] == [Untimed()] * 2
    assert reading("rounds_to:fedavg", blind, "active", other) == 2, "rounds are rounds"


def test_a_target_that_was_not_reached_has_a_bound_in_the_metric_s_own_unit() -> None:
    """Never 0.5 in 4 rounds of 4 s: more than 4 rounds, 16 s or 4 · 15 bytes, speed-ups below 4/4 and 8/16."""
    never = run([0.1, 0.2, 0.3, 0.4], seconds=4.0)
    for row in never.rows:
        row["bytes"] = {"down": {"weights": 10}, "up": {"weights": 5}}  # type: ignore[index]
        row["pace"] = {"time": 2.5 * row["round"]}  # type: ignore[index]
    bounds = {"rounds_to:fedavg": 4, "seconds_to:fedavg": 16, "bytes_to:fedavg": 60, "speedup": 1, "time_speedup": 0.5}
    assert {m: reading(m, never, "active", AVG) for m in bounds} == {m: Beyond(b, 4) for m, b in bounds.items()}
    assert reading("time_to:0.9", never, "active") == Beyond(10.0, 4), "virtual time"


def test_a_table_says_beyond_what_an_unreached_target_lies() -> None:
    """Of three seeds that all took longer, the shortest whole run is what all are beyond; of speed-ups the largest."""
    late = [Beyond(405.25, 100), Beyond(409.0, 100)]
    assert ours(Number("A", "x", "seconds_to:fedavg", late, None)) == "> 405.25"
    assert ours(Number("A", "x", "time_speedup", [Beyond(0.5, 9), Beyond(0.75, 9)], None)) == "< 0.75"
    assert ours(Number("A", "x", "rounds_to:fedavg", [Beyond(100.0, 100)], None)) == "> 100"
    assert ours(Number("A", "x", "bytes_to:0.9", [Beyond(6e7, 9), Beyond(7e7, 9)], None)) == "> 60"
    some = Number("A", "x", "seconds_to:fedavg", [300.0, *late], None)
    assert ours(some) == "300.00 (1 of 3 seeds)"
    assert {key: some.plain()[key] for key in ("mean", "not_reached", "beyond")} == {
        "mean": None, "not_reached": 2, "beyond": 405.25,
    }  # fmt: skip


def test_facts() -> None:
    spent = [{"train_server": 4.0, "identify": 1.0, "fuse": 0.5}, {"train_server": 2.0, "identify": 1.0, "fuse": 1.5}]
    result = run([0.1, 0.2], client_logits=[[0.1, 0.3], [0.5, 0.7]], global_logits=[0.8, 0.9], module_seconds=spent)
    assert reading("client_logits", result, "active") == pytest.approx(0.6)
    assert reading("global_logits", result, "active") == 0.9
    assert reading("seconds:train", result, "active") == 3
    assert reading("seconds:total", result, "active") == 5
    assert reading("seconds:total_without_training", result, "active") == 2
    assert reading("seconds:weigh", result, "active") is None


def test_identified_from_the_round_on_which_it_stays_right() -> None:
    """Right in rounds 1, 3, 4 but not in 2: identified from round 3 on."""
    right, wrong = {"precision": 1.0, "recall": 1.0}, {"precision": 1.0, "recall": 0.5}
    rows = [{"round": t + 1, "identification": entry} for t, entry in enumerate([right, wrong, right, right])]
    assert reading("rounds_to:identified", Result({}, rows), "active") == 3
    assert reading("rounds_to:identified", Result({}, rows[:2]), "active") == Beyond(2, 2)
    assert reading("rounds_to:identified", run([0.1]), "active") is None


def test_an_unknown_metric_lists_the_known() -> None:
    with pytest.raises(UsageError, match=r"unknown metric 'ampp'; did you mean amp\? known: accuracy, amp"):
        check("ampp")


def test_fluctuation_is_the_mean_change_in_the_second_half() -> None:
    """Of 0.9, 0.1, 0.5, 0.6, 0.4 the second half is 0.5, 0.6, 0.4: changes 0.1 and 0.2, mean 0.15. One value: none.

    WLP is half of AMP here, FM always the same.
    """
    assert reading("fluctuation", run([0.9, 0.1, 0.5, 0.6, 0.4]), "active") == pytest.approx(0.15)
    assert reading("fluctuation", run([0.9]), "active") is None
    assert reading("fluctuation_wlp", run([0.9, 0.1, 0.5, 0.6, 0.4]), "active") == pytest.approx(0.075)
    assert reading("fluctuation_fm", run([0.9, 0.1, 0.5, 0.6, 0.4]), "active") == 0


def test_bytes_to_a_target_count_both_ways_until_it_is_reached() -> None:
    """10 down and 5 up a round; accuracies 0.1, 0.4, 0.6: 0.4 is reached in round 2 after 30 bytes."""
    result = run([0.2, 0.5, 0.7])
    for row in result.rows:
        row["bytes"] = {"down": {"weights": 10}, "up": {"weights": 4, "labels": 1}}  # type: ignore[index]
    assert reading("bytes_to:0.4", result, "active") == 30
    assert reading("bytes_to:0.9", result, "active") == Beyond(45, 3)
    assert reading("bytes_to:fedavg", result, "active", AVG) == 30


def test_precision_and_recall_are_means_over_the_rounds_that_were_judged() -> None:
    """Rounds 1 and 3 were judged: precision (1 + 0.5) / 2, recall (0 + 1) / 2; of a normal day there is neither."""
    result = run([0.1, 0.2, 0.3], "personal")
    result.rows[0]["identification"] = {"precision": 1.0, "recall": 0.0}
    result.rows[2]["identification"] = {"precision": 0.5, "recall": 1.0}
    assert [reading(m, result, "personal") for m in ("precision", "recall")] == [0.75, 0.5]
    assert reading("recall", run([0.1], "personal"), "personal") is None


def test_honest_clients_accuracy_is_told_from_everybodys() -> None:
    result = run([0.5], "personal")
    result.rows[0]["models"]["personal"]["accuracy_honest"] = 0.45
    assert (reading("personal", result, "personal"), reading("honest", result, "personal")) == (0.4, 0.45)
    assert reading("honest", run([0.5]), "active") is None


def test_bytes_are_those_of_both_ways_and_all_rounds() -> None:
    """Two rounds of 3 + 4 bytes down and 5 up: 24."""
    result = run([0.1, 0.2])
    for row in result.rows:
        row["bytes"] = {"down": {"weights": 3, "labels": 4}, "up": {"weights": 5}}
    assert reading("bytes", result, "active") == 24


def test_a_metric_of_one_s_own_stands_in_a_table_and_its_runs_are_asked_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is shown under its own title, and read where it was reported; what every run reports is not asked for."""
    best = Metric(
        "best", "best client", "served best", over=lambda values: max(a for a in values.each if a is not None)
    )
    monkeypatch.setitem(metrics._entries, "my-best", best)
    content = {
        "rows": [{"label": "FedAvg"}],
        "columns": [{"label": "digits", "set": {"data": "digits"}}],
        "metrics": ["amp", "my-best", "bytes"],
    }
    (entry,) = plan(Preset("own", "own", "table", "", content), Path("."))
    assert entry.plans[0].metrics == ("my-best",)
    assert described("my-best").heading == "best client ↑ (%)"
    result = run([0.5])
    assert reading("my-best", result, "active") is None
    result.rows[0]["models"]["active"]["best"] = 0.7
    assert reading("my-best", result, "active") == 0.7
    assert to_report(["amp", "rounds_to:0.85", "bytes", "attack_success"]) == ()


def test_every_name_that_can_be_listed_can_be_shown() -> None:
    for key in table_metrics:
        shown = described(f"{key}fedavg" if key.endswith(":") else key)
        assert shown.about
        assert "{" not in shown.heading
