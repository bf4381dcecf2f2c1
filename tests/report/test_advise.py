"""Which method fits: what is refused and why, and in which order the rest is named."""

import json
import shutil
from pathlib import Path

import pytest

from fedstill.cli import main
from fedstill.core.errors import RunError, UsageError
from fedstill.experiment.leaderboard import Standing
from fedstill.report import advise as advice
from fedstill.report.advise import Situation, advise, refusal, standings
from fedstill.report.catalogue import methods

NOWHERE = Path("no-such-folder")
ROOT = Path(__file__).parents[2]


def named(situation: Situation) -> list[str]:
    return [one.method for one in advise(situation, NOWHERE, count=100)]


def test_nothing_is_named_that_sends_more_than_may_leave() -> None:
    """FedTKD sends logits on public samples, CCVR label counts, DaFKD a generator: none of them weights alone."""
    found = named(Situation(share=("weights",), public=True))
    assert {"fedavg", "fedkf", "fedrad"} <= set(found)
    assert not {"fedtkd", "ccvr", "dafkd", "centralised", "local"} & set(found)
    assert "dafkd" in named(Situation(share=("weights", "generators")))


def test_public_data_and_different_networks_decide() -> None:
    assert "fedtkd" in named(Situation(share=("logits",), public=True, different=True))
    found = named(Situation(share=("statistics", "logits"), public=False, different=True))
    assert "fedproto" in found
    assert "fedtkd" not in found
    assert all(not methods[name]().one_architecture for name in found)
    assert refusal(methods["fedavg"], Situation(different=True)) == "needs one network for all"
    assert refusal(methods["fedtkd"], Situation(share=("logits",))) == "needs public data"


def test_whether_networks_may_differ_is_asked_of_the_default_settings() -> None:
    """FedDistill+ averages weights unless it is told otherwise, and the command proposed does not tell it."""
    wide = ("weights", "statistics")
    assert "feddistill-plus" not in named(Situation(wide, different=True))
    (plus,) = [one for one in advise(Situation(wide), NOWHERE, count=100) if one.method == "feddistill-plus"]
    assert plus.why[-1] == "needs no public data; one network for all"


def test_a_guarantee_for_samples_leaves_out_what_it_does_not_cover() -> None:
    """q-FFL sends a loss, which is read off the samples by another way than training."""
    wide = ("weights", "statistics")
    assert "q-ffl" in named(Situation(wide))
    assert "q-ffl" not in named(Situation(wide, private=True))
    assert "fedavg" in named(Situation(wide, private=True))


def test_without_records_come_first_those_made_for_the_situation() -> None:
    """FedDyn, FedKF and FedRAD are made for unlike labels and for few active clients; any other for one of them."""
    first = advise(Situation(alpha=0.1, active=0.2), NOWHERE)
    assert [one.method for one in first] == ["feddyn", "fedkf", "fedrad"]
    assert first[1].command == "fedstill run fedkf --alpha 0.1 --active 0.2"
    assert "made for: few clients are active in a round" in first[1].why
    assert "no record" in first[1].evidence
    assert advise(Situation(alpha=10.0), NOWHERE)[0].method == "fedavg"


def test_records_come_before_what_papers_say_and_a_dear_method_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mean ranks: FedProx (1 + 2) / 2 = 1.5, FedKF (2 + 1.5) / 2 = 1.75."""
    board = {
        "fedprox": Standing("fedprox", {}, {"a": 1.0, "b": 2.0}, bytes=1.0, time=1.1, among=3),
        "fedkf": Standing("fedkf", {}, {"a": 2.0, "b": 1.5}, bytes=1.5, time=4.4, among=3),
    }
    monkeypatch.setattr(advice, "standings", lambda results: board)
    first, second, third = advise(Situation(alpha=0.1, active=0.2))
    assert (first.method, second.method) == ("fedprox", "fedkf")
    assert first.evidence == "mean rank 1.5 of 3 (one model for all) by AMP over 2 tasks of the leaderboard"
    assert second.cost == "4.4 times FedAvg's time, 1.5 times FedAvg's bytes in a round"
    assert third.cost == "not measured yet"
    assert "fedkf" not in [one.method for one in advise(Situation(alpha=0.1, active=0.2, cost=3.0), count=100)]


def test_ranks_of_different_leagues_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 3 of 28 has 2/27 of its league above it; rank 2 of 3, where each client has its own model, a half."""
    board = {
        "fedkf": Standing("fedkf", {}, {"a": 3.0}, bytes=None, time=None, among=28),
        "lg-fedavg": Standing("lg-fedavg", {}, {"a": 2.0}, None, None, "a model for each client", among=3),
    }
    monkeypatch.setattr(advice, "standings", lambda results: board)
    first, second, _ = advise(Situation(alpha=0.1, active=0.2))
    assert (first.method, second.method) == ("fedkf", "lg-fedavg")
    assert "of 3 (a model for each client)" in second.evidence


def test_bad_words_and_impossible_wishes_are_one_line() -> None:
    with pytest.raises(UsageError, match="share = secrets: must be one or more of weights, logits, statistics"):
        Situation(share=("secrets",))
    with pytest.raises(UsageError, match="active = 2"):
        Situation(active=2)
    with pytest.raises(RunError, match=r"no method fits: .*sends model weights.*; allow more"):
        advise(Situation(share=("generators",)), NOWHERE)


def test_the_command_prints_three_candidates(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leave:
        main(["advise", "--share", "logits", "--public", "--json", "--results", "no-such-folder"])
    assert leave.value.code == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found) == 3
    assert all("logits on public samples" in one["leaves"].values() for one in found)
    assert all("--public 0.1" in one["command"] for one in found)
    assert {one["evidence"] for one in found} == {"no records at no-such-folder: name their folder (--results)"}


def test_outside_a_clone_the_records_are_those_of_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    here = standings(ROOT / "results")
    (tmp_path / "shipped").mkdir()
    shutil.copy(ROOT / "results" / "leaderboard.jsonl", tmp_path / "shipped")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(advice, "shipped", lambda: tmp_path / "shipped")
    assert here
    assert standings(None) == here
    monkeypatch.setattr(advice, "shipped", lambda: None)
    assert standings(None) == {}
