"""A run says when it is ill, stops when it has no patience left, and fails when nothing was ever used."""

from pathlib import Path
from typing import Any

import pytest
from smallest import same_bits, small_experiment, small_method

from fedstill.cli import main
from fedstill.core.errors import RunError
from fedstill.core.loop import REFUSED
from fedstill.core.record import TOO_LONG
from fedstill.experiment.drive import exhausted
from fedstill.experiment.health import Health
from fedstill.experiment.result import Result
from fedstill.experiment.run import Watcher, resume, start
from fedstill.experiment.rundir import RunDir
from fedstill.experiment.watcher import StopRun

LONG = f"{REFUSED}{TOO_LONG}: norm 1e+08, the round's median 1.5"
ROWS = [
    {"round": 1, "active": [0, 1, 2], "missing": {}},
    {
        "round": 2,
        "active": [0, 1, 3],
        "missing": {"1": "refused: weights/a has values that are not finite or too large (inf)", "3": "dropped out"},
    },
    {
        "round": 3,
        "active": [1, 2, 4],
        "missing": {"1": "refused: a Note instead of a Update", "4": "its worker died, twice", "2": LONG},
    },
]


def test_health_by_hand() -> None:
    """Nine asked; lost: two that diverge, and one of each other kind. So four are used."""
    health = Health.of(ROWS)
    assert health.total == {"asked": 9, "used": 4, "diverging": 2, "refused": 1, "dropped": 1, "missing": 1}
    assert [entry.used for entry in health.rounds] == [3, 1, 0]
    assert health.clients() == {
        "1": {"diverging": 1, "refused": 1},
        "2": {"diverging": 1},
        "3": {"dropped": 1},
        "4": {"missing": 1},
    }
    assert not health.well
    assert not health.failed
    assert str(health) == "4 of 9 replies used; 2 diverging, 1 refused, 1 dropped, 1 missing"
    assert (
        health.rounds[1].line().startswith("round 2: 1 of 3 replies used; 1 diverging (client 1: weights/a has values")
    )
    assert health.rounds[0].line() == ""


class Notes(Watcher):
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.end: Result | None = None

    def note(self, text: str) -> None:
        self.lines.append(text)

    def ended(self, result: Result) -> None:
        self.end = result


def test_a_run_in_which_no_reply_was_used_fails_and_names_the_likely_cause(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "run fedavg --data digits --samples 200 --clients 3 --rounds 2 --workers inline --set lr=1e30"
    with pytest.raises(SystemExit) as leave:
        main([*words.split(), "--out", str(runs), "--name", "x"])
    assert leave.value.code == 1
    said = capsys.readouterr().err
    assert "no reply was used in 2 rounds (0 of 2 replies used; 2 diverging)" in said
    assert "try a smaller step size (lr = 1e+30)" in said
    assert not (runs / "x" / "result.json").exists()
    with pytest.raises(RunError, match="no reply was used in 2 rounds"):
        resume(runs / "x")
    with pytest.raises(RunError, match="every client drops out"):
        start(small_experiment(small_method("fedavg"), drop=1.0), out=None)


def test_what_was_lost_is_told_and_summed(runs: Path) -> None:
    """`gaussian` noise of 1e30 from half the clients: the limit refuses them, the rest go on."""
    notes = Notes()
    attack = {"attack": {"name": "gaussian", "std": 1e30}, "malicious": "0.5", "active": 1.0}
    result = start(small_experiment(small_method("fedavg"), **attack), out=runs, name="x", watcher=notes)
    assert result.health.total == {"asked": 12, "used": 6, "diverging": 6, "refused": 0, "dropped": 0, "missing": 0}
    assert [
        line.startswith(f"round {t}: 3 of 6 replies used; 3 diverging")
        for t, line in zip((1, 2), notes.lines, strict=False)
    ] == [True, True]
    assert notes.lines[-1] == "6 of 12 replies used; 6 diverging"
    assert Result.read(runs / "x").health.total == result.health.total == result.summary()["health"]["total"]
    assert notes.end is result


def amps(*values: float) -> list[dict[str, Any]]:
    return [{"round": t + 1, "models": {"active": {"amp": a}}} for t, a in enumerate(values)]


def test_patience_by_hand() -> None:
    """Best in round 2; rounds 3 and 4 are no better: two rounds of patience end there, three do not."""
    assert exhausted(amps(0.1, 0.6, 0.5, 0.6), 2) == "no better AMP of active than in round 2, for 2 evaluated rounds"
    assert exhausted(amps(0.1, 0.6, 0.5, 0.6), 3) == ""
    assert exhausted(amps(float("nan"), 0.1), 1) == ""
    assert exhausted(amps(0.2, 0.1), None) == ""
    assert exhausted(amps(0.2, 0.1), 1, sign=-1) == "", "less is better"


def test_a_run_without_patience_stops_in_the_same_round_whether_resumed_or_not(runs: Path) -> None:
    plan = {"rounds": 30, "patience": 1, "evaluate_every": 1}
    whole = start(small_experiment(small_method("fedavg", lr=0.5), **plan), out=runs, name="whole")
    assert 2 <= len(whole.rows) < 30
    assert "for 1 evaluated rounds" in whole.stopped

    class Ends(Watcher):
        def round(self, row: Any) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start(small_experiment(small_method("fedavg", lr=0.5), **plan), out=runs, name="cut", watcher=Ends())
    again = resume(runs / "cut")
    assert (len(again.rows), again.stopped) == (len(whole.rows), whole.stopped)
    states = [RunDir.open(runs / name).latest()[0] for name in ("whole", "cut")]
    assert same_bits(states[0].server, states[1].server)  # type: ignore[union-attr]
    assert Result.read(runs / "whole").stopped == whole.stopped
    assert len(resume(runs / "whole").rows) == len(whole.rows), "a run that stopped is finished"


def test_a_watcher_can_stop_a_run_in_good_order(runs: Path) -> None:
    class Enough(Watcher):
        def round(self, row: Any) -> None:
            if row["round"] == 2:
                raise StopRun("good enough")

    notes = Notes()
    result = start(small_experiment(small_method("fedavg"), rounds=5), out=runs, name="x", watcher=[Enough(), notes])
    assert (len(result.rows), result.stopped) == (2, "good enough")
    assert notes.lines[-1] == "stopped after round 2: good enough"
    assert len(resume(runs / "x").rows) == 5, "whoever resumes it wants more"


def test_a_result_shows_itself_in_one_line_and_is_read_from_text(runs: Path) -> None:
    start(small_experiment(small_method("fedavg")), out=runs, name="x")
    shown = repr(Result.read(str(runs / "x")))
    assert shown.startswith("Result(fedavg on digits, seed 1, 2 rounds: active AMP 0.")
    assert len(shown) < 200
