"""A search: what is proposed lies in the space, is judged with seeds of its own, and goes on where it was stopped."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from fedstill import cli
from fedstill.core.errors import UsageError
from fedstill.experiment import search
from fedstill.experiment.config import read
from fedstill.experiment.result import Result
from fedstill.experiment.search import Range, Trial
from fedstill.experiment.sweep import Point

pytest.importorskip("optuna")
WORDS = "--data digits --samples 200 --clients 2 --active 1 --rounds 1 --model mlp --set epochs=1"


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("lr=0.01..1", Range(0.01, 1.0, False, True)),  # a hundred times apart: on a logarithmic scale
        ("lr=0.1..0.5", Range(0.1, 0.5, False, False)),
        ("lr=0.1..0.5:log", Range(0.1, 0.5, False, True)),
        ("lr=0.01..1:linear", Range(0.01, 1.0, False, False)),
        ("epochs=1..4", Range(1.0, 4.0, True, False)),
        ("gather=remember,everyone", ["remember", "everyone"]),
        ("momentum=0.9", ["0.9"]),
    ],
)
def test_what_is_searched_is_read_from_words(text: str, made: Range | list[str]) -> None:
    assert list(search.space([text]).values()) == [made]


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("lr=1..0.1", "the lower end must come first"),
        ("lr=a..b", "a range must be low..high, two numbers"),
        ("lr=0..1:log", "a logarithmic range must be of numbers > 0"),
        ("lr=0.01..inf", "low and high must be finite"),
        ("lr=-inf..1", "low and high must be finite"),
        ("lr=nan..1", "low and high must be finite"),
        ("seed=1..3", "say how many with --seeds"),
    ],
)
def test_what_is_no_range_is_refused(text: str, word: str) -> None:
    with pytest.raises(UsageError, match=word):
        search.space([text])


def plan(values: Mapping[str, str]) -> dict[str, Any]:
    return {"method": {"name": "fedavg", "lr": values["lr"]}, "data": "digits"}


def test_tpe_comes_closer_to_the_best_and_is_the_same_every_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The score is -(lr - 0.3)²: of 40 trials in 0..1 the best is near .3, and the last ones are nearer than the first.

    Trials that were drawn without regard to scores would stay .25 away in the mean.
    """
    monkeypatch.setattr(search, "_score", lambda point, done: -((float(point.values["lr"]) - 0.3) ** 2))

    def tried(count: int) -> list[Trial]:
        return search.search({"lr": Range(0.0001, 1.0, False, False)}, plan, tmp_path, count, run=lambda points: {})

    trials = tried(40)
    rates = [float(trial.point.values["lr"]) for trial in trials]
    assert all(0.0001 <= rate <= 1 for rate in rates)
    assert float(search.best(trials).point.values["lr"]) == pytest.approx(0.3, abs=0.05)
    assert sum(abs(rate - 0.3) for rate in rates[-12:]) / 12 < 0.15
    assert [trial.point for trial in tried(8)] == [trial.point for trial in trials[:8]]
    assert {job.plan.seed for trial in trials for job in trial.point.jobs} == {search.TUNING_SEED}


def test_a_trial_that_fails_is_not_the_best_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def run(points: Sequence[Point]) -> dict[Path, str]:
        calls.append(len(points))
        return {}

    monkeypatch.setattr(search, "_score", lambda point, done: None if float(point.values["lr"]) > 0.5 else 0.1)
    trials = search.search({"lr": Range(0.1, 1.0, False, False)}, plan, tmp_path, 6, run=run)
    assert calls == [4, 2]
    assert None in [trial.score for trial in trials]
    assert search.best(trials).score == 0.1
    with pytest.raises(UsageError, match="no trial came to its end"):
        search.best([Trial(trials[0].point, None)])


def test_a_search_by_command_writes_what_it_found_and_is_not_run_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["sweep", "fedavg", "--search", "optuna", "--grid", "lr=0.01..1", "--trials", "2", *WORDS.split()]
    words += ["--out", str(tmp_path), "--jobs", "1", "--json"]
    for finished in (0, 4):
        with pytest.raises(SystemExit) as left:
            cli.main(words)
        assert not left.value.code
        out, err = capsys.readouterr()
        assert err.count("finished before") == finished
    found = json.loads(out)
    scores = {trial["values"]["lr"]: trial["score"] for trial in found["trials"]}
    assert scores[found["best"]["lr"]] == max(scores.values())
    tried = [Result.read(path) for trial in found["trials"] for path in trial["runs"]]
    assert [result.experiment["seed"] for result in tried] == [101, 101]
    assert [result.last("overall")["amp"] for result in tried] == [trial["score"] for trial in found["trials"]]
    assert [row["method"] for row in found["rows"][::2]] == ["as given", f"lr={found['best']['lr']}"]
    assert {tuple(row["seeds"]) for row in found["rows"]} == {(1,)}
    assert read(tmp_path / "best.toml")["method"]["lr"] == float(found["best"]["lr"])
    assert "The search" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("words", "word"),
    [
        (["--search", "grid"], "must be optuna"),
        (["--search", "optuna", "--seeds", "200"], "seeds = 200: must be < 101"),
    ],
)
def test_a_search_that_cannot_be_is_refused(words: list[str], word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(["sweep", "fedavg", "--grid", "lr=0.1..1", *words])
    assert left.value.code == 2
    assert word in capsys.readouterr().err
