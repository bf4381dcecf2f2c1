"""Tables: grouping by seed, marks, and the forms they are printed in. Numbers are made by hand."""

import csv
import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedstill.core.errors import UsageError
from fedstill.experiment.config import experiment
from fedstill.experiment.metrics import METRICS
from fedstill.experiment.result import Result
from fedstill.report import tables

AMP, FM, _, GLOBAL = METRICS


def made(method: str, seed: int, amp: float, rounds: int = 2, data: str = "digits", **settings: Any) -> Result:
    """A run whose active model ends with this AMP; everything else is plain."""
    plan = experiment({"method": {"name": method, **settings}, "data": data, "seed": seed, "rounds": 2}).plain()
    scores = {"amp": amp, "fm": 0.01, "wlp": amp / 2, "accuracy": None, "accuracy_per_client": [amp, amp / 2]}
    row = {
        "models": {"active": scores},
        "bytes": {"down": {"w": 10}, "up": {"w": 4}},
        "seconds": {"clients": 1.0},
        "active": [0],
    }
    return Result(plan, [{**row, "round": t + 1} for t in range(rounds)], None, 2.0)


def test_seeds_of_one_experiment_are_one_row() -> None:
    """AMP 0.6 and 0.8: mean 0.7, standard deviation √((0.1² + 0.1²)/1) = 0.1414…"""
    (row,) = tables.comparison([made("fedavg", 1, 0.6), made("fedavg", 2, 0.8)])
    assert row["seeds"] == [1, 2]
    assert row["amp"]["mean"] == pytest.approx(0.7)
    assert row["amp"]["std"] == pytest.approx(0.02**0.5)
    assert row["accuracy"] is None
    assert row["bytes"] == {"down": 20, "up": 8}
    assert tables.cell(row["amp"], AMP) == "70.00 ± 14.14"
    assert tables.cell(row["fm"], FM) == "10.00"


def test_labels_say_what_differs_within_a_data_set_only() -> None:
    runs = [
        made("fedavg", 1, 0.6, lr=0.1),
        made("fedavg", 1, 0.7, lr=0.5),
        made("fedavg", 1, 0.5, data="mnist-5k", lr=0.9),
    ]
    names = [tables.label(run.experiment, runs) for run in runs]
    assert names == ["fedavg (lr=0.1)", "fedavg (lr=0.5)", "fedavg"]


def test_labels_name_the_settings_of_wrappers_that_differ() -> None:
    """Cut after forty signs, every ε had one name; the run without any is named by that."""

    def private(**settings: Any) -> Result:
        chain = [{"name": "private-samples", **settings}, {"name": "quantise"}]
        plan = experiment({"method": "fedavg", "data": "digits", "wrappers": chain}).plain()
        return Result(plan, made("fedavg", 1, 0.6).rows)

    low, high, bare = private(epsilon=0.01), private(epsilon=8.0), made("fedavg", 1, 0.6)
    names = [tables.label(run.experiment, [low, high]) for run in (low, high)]
    assert names == ["fedavg (private-samples.epsilon=0.01)", "fedavg (private-samples.epsilon=8.0)"]
    names = [tables.label(run.experiment, [low, high, bare]) for run in (low, high, bare)]
    assert names == [
        "fedavg (rounds=20, wrappers=private-samples,quantise, private-samples.epsilon=0.01)",
        "fedavg (rounds=20, wrappers=private-samples,quantise, private-samples.epsilon=8.0)",
        "fedavg (rounds=2, wrappers=none)",
    ]


def test_a_run_written_before_a_setting_existed_has_its_default() -> None:
    new = made("fedavg", 1, 0.6)
    old = made("fedavg", 2, 0.6)
    bare = {k: v for k, v in old.experiment.items() if k not in ("drop", "per_class")}
    rows = tables.comparison([new, Result(bare, old.rows)])
    assert [row["seeds"] for row in rows] == [[1, 2]]


def test_seeds_that_are_behind_do_not_enter_the_mean() -> None:
    (row,) = tables.comparison([made("fedavg", 1, 0.6), made("fedavg", 2, 0.8, rounds=1)])
    assert (row["seeds"], row["amp"]["mean"]) == ([1], 0.6)


def test_seeds_that_ran_out_of_patience_enter_the_mean() -> None:
    early = replace(made("fedavg", 2, 0.8, rounds=1), stopped="no better AMP")
    (row,) = tables.comparison([made("fedavg", 1, 0.6), early])
    assert row["seeds"] == [1, 2]
    assert row["amp"]["mean"] == pytest.approx(0.7)


def test_the_best_round_is_one_that_has_the_model_and_an_amp() -> None:
    """Nobody answered in round 1, and round 2 had no tests: round 3 is best; a model without AMP has its first."""
    scores: list[dict[str, Any]] = [
        {},
        {"personal": {"amp": None}},
        {"personal": {"amp": 0.3}},
        {"personal": {"amp": 0.2}},
    ]
    rows = [{"round": t, "models": {"active": {}, **more}} for t, more in enumerate(scores, 1)]
    result = Result(made("fedavg", 1, 0.6).experiment, rows, None, 2.0)
    assert result.best("personal") == {"round": 3, "amp": 0.3, "fm": None, "wlp": None, "accuracy": None}
    assert result.best("active")["round"] == 1


def test_best_and_second_of_each_data_set() -> None:
    """0.8 is first, 0.70001 and 0.7 look alike and share the second place, 0.6 is last and bare."""
    rows = tables.comparison(
        [
            made("fedavg", 1, 0.8),
            made("fedprox", 1, 0.7),
            made("fedkf", 1, 0.70001),
            made("fedkf-minus", 1, 0.6),
            made("fedavg", 1, 0.1, data="mnist-5k"),
        ]
    )
    assert [tables.place(rows, row, AMP) for row in rows] == [1, 2, 2, 0, 0]
    assert [tables.place(rows, row, FM) for row in rows] == [0, 0, 0, 0, 0]  # all alike: nobody is best
    assert tables.place(rows, rows[0], GLOBAL) == 0


def test_forms() -> None:
    rows = tables.comparison([made("fedavg", 1, 0.8, lr=0.5), made("fedavg", 1, 0.7, lr=0.1), made("fedprox", 1, 0.6)])
    markdown = tables.text(rows, "markdown").splitlines()
    assert markdown[0].startswith("| method | data | model |")
    assert "| **80.00** |" in markdown[2]
    assert "| <u>70.00</u> |" in markdown[3]
    latex = tables.text(rows, "latex")
    assert r"\textbf{80.00}" in latex
    assert r"\underline{70.00}" in latex
    assert latex.count(r"\\") == 4
    lines = list(csv.DictReader(io.StringIO(tables.text(rows, "csv"))))
    assert float(lines[2]["amp_mean"]) == 0.6
    assert lines[2]["accuracy_mean"] == ""


def test_the_terminal_says_the_data_once(capsys: pytest.CaptureFixture[str]) -> None:
    tables.show(tables.comparison([made("fedavg", 1, 0.8), made("fedprox", 1, 0.7)]))
    out = capsys.readouterr().out
    assert out.splitlines()[0].strip() == "on digits"
    assert "80.00" in out
    assert " data " not in out


def test_runs_are_found_at_any_depth_but_not_inside_runs(tmp_path: Path) -> None:
    for place in ("a", "b/c/seed-1", "a/clients/x"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "experiment.json").write_text("{}")
    assert [str(p.relative_to(tmp_path)) for p in tables.find_runs(tmp_path)] == ["a", "b/c/seed-1"]
    with pytest.raises(UsageError, match="a: no evaluated round yet"):
        tables.collect([tmp_path / "a"])
