"""Tags and notes: given with a run or later, shown and asked for by `ls runs`, `compare`, `report` and `results`."""

import json
from pathlib import Path

import pytest
from smallest import small_experiment, small_method

from fedstill import cli
from fedstill.core.errors import UsageError
from fedstill.experiment.annotate import annotate
from fedstill.experiment.archive import Archive, matching
from fedstill.experiment.batch import finished
from fedstill.experiment.records import record_of
from fedstill.experiment.run import start


def call(words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as leave:
        cli.main(words.split())
    return int(leave.value.code or 0), *capsys.readouterr()


@pytest.fixture
def two(runs: Path) -> Path:
    """Two runs, one of them tagged."""
    plan = small_experiment(small_method("fedavg"), rounds=1, tag=("final", "talk"), note="for Tuesday")
    start(plan, out=runs, name="a")
    start(small_experiment(small_method("fedavg"), rounds=1, seed=2), out=runs, name="b")
    return runs


def test_runs_are_listed_with_tags_and_notes_and_chosen_by_them(two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(f"ls runs --in {two} --json", capsys)
    assert code == 0
    first, second = json.loads(out)
    assert (first["run"], first["tags"], first["note"]) == (str(two / "a"), "final, talk", "for Tuesday")
    assert (second["tags"], second["rounds"]) == ("", "1 of 1")
    code, out, _ = call(f"ls runs --in {two} --tag talk --json", capsys)
    assert [row["run"] for row in json.loads(out)] == [str(two / "a")]
    code, _, err = call(f"ls runs --in {two} --tag lunch", capsys)
    assert (code, "no run there has the tag lunch" in err) == (2, True)
    assert call("ls methods --tag final", capsys)[0] == 2


def test_compare_and_report_take_only_runs_with_a_tag(two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads(call(f"compare {two} --json", capsys)[1])[0]["seeds"] == [1, 2]
    tagged = json.loads(call(f"compare {two} --tag final --json", capsys)[1])
    assert tagged[0]["seeds"] == [1]
    page = two / "page.html"
    assert call(f"report {two} --tag final -o {page}", capsys)[0] == 0
    assert "1 run on" in page.read_text()
    code, _, err = call(f"report {two} --tag lunch -o {page}", capsys)
    assert (code, "nothing to show: no run has the tag lunch" in err) == (2, True)


def test_tags_and_a_note_are_changed_later_and_the_run_stays_finished(
    two: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = call(f"tag {two / 'a'} paper --remove talk --note better", capsys)
    assert (code, out) == (0, f"{two / 'a'}: final, paper · better\n")
    assert finished(two / "a")
    assert json.loads((two / "a" / "result.json").read_text())["experiment"]["tag"] == ["final", "paper"]
    assert annotate(two / "a", add=["paper"]) == ["final", "paper"]
    with pytest.raises(UsageError, match="has no tag 'talk'; it has final, paper"):
        annotate(two / "a", remove=["talk"])


def test_records_are_chosen_by_any_of_their_tags(two: Path) -> None:
    archive = Archive(two / "results")
    for name in "ab":
        archive.add(record_of(two / name, ""))
    fits = matching(["tag=ta*"])
    assert [record.experiment["note"] for record in archive if fits(record)] == ["for Tuesday"]
