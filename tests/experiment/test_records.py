"""Records of runs, the queue that makes them, and running them again."""

import json
import shutil
import subprocess
import sys
import threading
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from smallest import FEDAVG_ROWS, preset_base

from fedstill import cli
from fedstill.core.errors import RunError, UsageError
from fedstill.experiment import archive, batch, queue, records, reproduce, rundir
from fedstill.experiment.archive import Archive, fitting, matching
from fedstill.experiment.config import experiment
from fedstill.experiment.lock import writing
from fedstill.experiment.presets import read_preset
from fedstill.experiment.records import Record, made_by, record_id, record_of
from fedstill.experiment.result import Result
from fedstill.experiment.run import resume, start
from fedstill.experiment.verify import PARTS, Check, verified
from fedstill.report import result_pages
from fedstill.report.record_tables import OLDER_KERNELS, show_check

SMALL: dict[str, Any] = {
    "method": {"name": "fedavg", "lr": 0.1, "epochs": 1},
    "data": "digits",
    "samples": 300,
    "clients": 4,
    "active": 0.5,
    "rounds": 3,
    "model": "mlp",
    "workers": "inline",
}

TABLE = f"""
title = "A tiny table"
kind = "table"
metrics = ["amp", "rounds_to:fedavg"]
{preset_base()}
{FEDAVG_ROWS}[[rows]]
label = "FedProx"
method = {{ name = "fedprox", lr = 0.1, epochs = 1 }}
model = "active"
[[columns]]
label = "all"
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "one"
    start(experiment(SMALL), out=path.parent, name=path.name)
    return path


def test_a_record_reads_as_the_run_it_was_made_of(run: Path) -> None:
    made, whole = record_of(run, "tiny · FedAvg × all"), Result.read(run)
    again = made.result()
    for model in ("active", "overall"):
        assert again.curve(model, "amp") == pytest.approx(whole.curve(model, "amp"), rel=1e-5)
        assert again.last(model)["accuracy_per_client"] == pytest.approx(whole.last(model)["accuracy_per_client"], 1e-5)
    assert again.bytes() == whole.bytes()
    assert again.seconds == pytest.approx(whole.seconds, abs=0.05)
    assert again.models == whole.models
    assert len(made.line()) < 6000
    assert made.versions["torch"]
    assert made.versions["cores"]


def test_a_longer_run_stands_for_a_shorter_one_but_not_for_another_seed_or_rate(run: Path, tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    archive.add(record_of(run))
    plan = experiment(SMALL)
    assert archive.find(plan) is not None
    short = archive.find(replace(plan, rounds=2))
    assert short is not None
    assert short.result(2).curve("active", "amp") == pytest.approx(Result.read(run).curve("active", "amp")[:2], 1e-5)
    briefer = {**short.experiment, "rounds": 2}
    archive.add(replace(short, id="brief", experiment=briefer, rounds=[n for n in short.rounds if n <= 2]))
    assert archive.find(replace(plan, rounds=2)) == short  # tables of 2 and of 3 rounds show the same run
    assert archive.find(replace(plan, workers="2")) is not None  # never changes the bits
    assert archive.find(replace(plan, rounds=4)) is None
    assert archive.find(replace(plan, seed=2)) is None
    assert archive.find(experiment({**SMALL, "method": {**SMALL["method"], "lr": 0.2}})) is None
    assert archive.find(replace(plan, metrics=("fm",))) is not None


def test_a_record_without_a_metric_does_not_answer_who_asks_for_it(run: Path, tmp_path: Path) -> None:
    archive, record = Archive(tmp_path), record_of(run)
    less = {m: {name: curve for name, curve in known.items() if name != "fm"} for m, known in record.curves.items()}
    archive.add(replace(record, curves=less))
    assert archive.find(experiment(SMALL)) is not None
    assert archive.find(experiment({**SMALL, "metrics": ("fm",)})) is None


def test_a_record_names_the_commit_that_ran(run: Path) -> None:
    written = json.loads((run / "versions.json").read_text())
    assert record_of(run).commit == written["commit"] == rundir.commit()
    assert "commit" not in record_of(run).versions


def test_a_run_that_is_killed_as_soon_as_it_is_one_has_its_split(
    run: Path, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written after `experiment.json` would be missing for good: nothing is."""
    whole = record_of(run)
    with monkeypatch.context() as here:
        here.setattr("fedstill.experiment.run._follow", lambda *_: {}["killed"])
        with pytest.raises(KeyError, match="killed"):
            start(experiment(SMALL), out=runs, name="killed")
    resume(runs / "killed")
    assert record_of(runs / "killed").split == whole.split
    assert {file.name for file in (runs / "killed").glob("*.json")} >= {"partition.json", "split.json", "metrics.json"}


def test_what_is_read_again_is_what_it_was_beside_what_another_writer_added(run: Path, tmp_path: Path) -> None:
    archive, record = Archive(tmp_path), record_of(run)
    archive.add(record)
    before = archive.records[0]
    Archive(tmp_path).add(replace(record, id="another writer's"))
    archive.add(replace(record, id="own"))
    assert [r.id for r in archive] == [record.id, "another writer's", "own"]
    assert archive.records[0] is before  # not parsed again: a queue reads all records after each that it adds


def test_a_line_cut_off_by_a_crash_is_left_out_and_written_over(run: Path, tmp_path: Path) -> None:
    archive, record = Archive(tmp_path), record_of(run)
    file = archive.add(record)
    with file.open("a") as end:
        end.write('{"id": "half')
    assert [r.id for r in Archive(tmp_path)] == [record.id]
    archive.add(replace(record, id="other"))
    assert [r.id for r in Archive(tmp_path)] == [record.id, "other"]
    with file.open("ab") as end:
        end.write('{"id": "·'.encode()[:-1])  # inside a character
    assert [r.id for r in Archive(tmp_path)] == [record.id, "other"]
    archive.add(replace(record, id="other", bits="", commit="a\u2028b"))  # what some take for the end of a line
    assert [r.id for r in Archive(tmp_path)] == [record.id, "other"]
    file.write_text(file.read_text().rstrip("\n"))  # as an editor may leave it
    archive.add(replace(record, id="third"))
    assert [r.id for r in Archive(tmp_path)] == [record.id, "other", "third"]
    file.write_text("nonsense\n" + file.read_text())
    with pytest.raises(UsageError, match=r"own.jsonl, line 1: not a record"):
        list(Archive(tmp_path))


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("line", ["nonsense", '{"id": "half', "{}"])
def test_a_whole_line_that_is_no_record_is_named_wherever_it_stands(
    run: Path, tmp_path: Path, place: int, line: str
) -> None:
    """Also the last: a crash leaves a line without its end, and of this one the next record makes a line within."""
    archive, record = Archive(tmp_path), record_of(run)
    for name in ("one", "two"):
        file = archive.add(replace(record, id=name))
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:place], line, *lines[place:], ""]))
    for call in (lambda: list(Archive(tmp_path)), lambda: Archive(tmp_path).add(replace(record, id="three"))):
        with pytest.raises(UsageError, match=rf"own.jsonl, line {place + 1}: not a record"):
            call()
    assert file.read_text().splitlines() == [*lines[:place], line, *lines[place:]]


def test_blank_lines_are_passed_over(run: Path, tmp_path: Path) -> None:
    archive, record = Archive(tmp_path), record_of(run)
    file = archive.add(replace(record, id="one"))
    file.write_text(f"\n{file.read_text()}  \n\n")
    archive.add(replace(record, id="two"))
    assert [r.id for r in Archive(tmp_path)] == ["one", "two"]


def test_a_second_writer_waits_and_no_record_is_lost(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one process holds the folder and writes its line, another's record waits; then both are there."""
    record = record_of(run)
    adding = threading.Thread(target=Archive(tmp_path).add, args=(replace(record, id="second"),))
    with writing(tmp_path):
        adding.start()
        adding.join(0.5)
        assert adding.is_alive()
        (tmp_path / "own.jsonl").write_text(replace(record, id="first").line())
    adding.join()
    assert [r.id for r in Archive(tmp_path)] == ["first", "second"]
    monkeypatch.setattr(archive, "PATIENCE", 0.1)
    with writing(tmp_path), pytest.raises(UsageError, match="is writing there"):
        Archive(tmp_path).add(record)
    assert len(Archive(tmp_path).records) == 2


ADD = """
import sys
from dataclasses import replace
from pathlib import Path
from fedstill.experiment.archive import Archive
archive = Archive(Path(sys.argv[1]))
record = archive.records[0]
for number in range(15):
    archive.add(replace(record, id=f"{sys.argv[2]}-{number}"))
"""


def test_two_processes_add_to_one_folder_and_all_their_records_are_there(run: Path, tmp_path: Path) -> None:
    Archive(tmp_path).add(record_of(run))
    both = [subprocess.Popen([sys.executable, "-c", ADD, str(tmp_path), name]) for name in ("a", "b")]
    assert [process.wait() for process in both] == [0, 0]
    expected = {record_id(experiment(SMALL))} | {f"{name}-{number}" for name in ("a", "b") for number in range(15)}
    assert {record.id for record in Archive(tmp_path)} == expected


def test_records_are_found_by_their_settings_and_by_how_their_id_starts(run: Path, tmp_path: Path) -> None:
    archive, record = Archive(tmp_path), record_of(run, "tiny · FedAvg × all")
    archive.add(record)
    assert matching(["method=fedavg", "seed=1", "alpha=0.1", "lr=0.1", "cell=tiny*"])(record)
    assert not matching(["partition.alpha=1.0"])(record)
    assert archive.by_id(record.id[:4]) == archive.records[0]
    with pytest.raises(UsageError, match="unknown record 'zzz'"):
        archive.by_id("zzz")
    with pytest.raises(UsageError, match="must be name=value"):
        matching(["fedavg"])


def test_an_unfinished_run_is_no_record(tmp_path: Path, run: Path) -> None:
    settings = json.loads((run / "experiment.json").read_text())
    (tmp_path / "experiment.json").write_text(json.dumps({**settings, "rounds": 9}))
    (tmp_path / "metrics.jsonl").write_text((run / "metrics.jsonl").read_text())
    with pytest.raises(RunError, match="3 of 9 rounds so far"):
        record_of(tmp_path)


def test_a_run_that_lost_patience_is_no_record_and_it_says_so(runs: Path) -> None:
    """At a rate of 1e-12 nothing changes, so after the first round none is better; records are of whole runs."""
    still = {**SMALL, "method": {"name": "fedavg", "lr": 1e-12, "epochs": 1}, "rounds": 40, "patience": 2}
    start(experiment({**still, "active": 1.0}), out=runs, name="still")
    with pytest.raises(RunError, match=r"stopped by patience after 3 of 40 rounds \(no better AMP .*\); only a whole"):
        record_of(runs / "still")
    (runs / "still" / "result.json").write_text(json.dumps({"rounds": 3, "stopped": "good enough"}))
    with pytest.raises(RunError, match=r"stopped after 3 of 40 rounds \(good enough\); only a whole run"):
        record_of(runs / "still")


@pytest.mark.parametrize("gone", [False, True])
def test_a_run_without_its_last_checkpoint_is_no_record(run: Path, tmp_path: Path, gone: bool) -> None:
    """The one before is whole, and its weights are another round's."""
    path = tmp_path / "one"
    shutil.copytree(run, path)
    last = path / "checkpoints" / "000003.safetensors"
    if gone:
        last.unlink()
    else:
        last.write_bytes(last.read_bytes()[:-2] + b"\0\1")
    with pytest.raises(RunError, match=r"no whole checkpoint of its last round, 3.*`fedstill resume .*one` makes one"):
        record_of(path)
    resume(path)
    assert record_of(path).weights == record_of(run).weights


def test_bytes_of_rounds_add_up_to_what_was_sent(run: Path) -> None:
    """10 bytes in three rounds: 3, 3 and 4; two of them sent 6."""
    record = replace(record_of(run), bytes={"down": {"w": 10}, "up": {"w": 9, "b": 1}})
    assert [row["bytes"]["down"]["w"] for row in record.result().rows] == [3, 3, 4]
    assert record.result().bytes() == {"down": 10, "up": 10}
    assert record.result(2).bytes() == {"down": 6, "up": 6}


def test_a_record_of_other_data_does_not_take_the_place_of_the_one_that_is_there(tmp_path: Path, run: Path) -> None:
    """A file that changed has the same name, so the settings, and with them the id, are the same."""
    archive, record = Archive(tmp_path / "results"), record_of(run)
    archive.add(record)
    with pytest.raises(UsageError, match=rf"other data \({record.data}, not 0123456789abcdef\)"):
        archive.add(replace(record, data="0123456789abcdef"))
    assert [r.data for r in archive.records] == [record.data]


def test_no_record_of_other_data_stands_beside_those_whose_data_are_named_alike(tmp_path: Path, run: Path) -> None:
    """Tables average and test what they find by settings: a method of before the file changed, another of after it."""
    archive, record = Archive(tmp_path / "results"), record_of(run)
    archive.add(record)

    def another(fingerprint: str, **settings: Any) -> Record:
        return replace(
            record, id=f"{len(archive.records)}", data=fingerprint, experiment={**record.experiment, **settings}
        )

    for settings in ({"method": {"name": "fedprox"}}, {"seed": 2}, {"public": 0.1}, {"public": "train"}):
        with pytest.raises(UsageError, match=rf"the record {record.id} .* names its data alike and had other data"):
            archive.add(another("0123456789abcdef", **settings))
        archive.add(another(record.data, **settings))
    archive.add(another("0123456789abcdef", data="mnist-5k"))
    archive.add(another("fedcba9876543210", public="mnist-5k"))  # the fingerprint is of both sets
    archive.add(another("0011223344556677", reading={"name": "columns", "label": "outcome"}))
    for fingerprint in ("aa", "bb"):  # arrays have no name
        archive.add(another(fingerprint, data="<tuple>"))
    assert len(archive.records) == 10


def test_the_shipped_records_whose_data_are_named_alike_are_of_the_same_data() -> None:
    known: dict[str, set[str]] = {}
    for record in Archive(Path(__file__).parents[2] / "results"):
        known.setdefault(record.data_named, set()).add(record.data)
    assert {name: prints for name, prints in known.items() if len(prints) > 1} == {}
    assert len(known) > 10


def test_the_same_record_is_added_once(tmp_path: Path, run: Path) -> None:
    archive, record = Archive(tmp_path), record_of(run)
    file = archive.add(record)
    assert archive.add(replace(record, date="later")) == file
    assert len(file.read_text().splitlines()) == 1
    archive.add(replace(record, cell="own · FedAvg × all"))  # it stands for a cell now
    archive.add(replace(record, weights="made on another processor"))
    assert [r.weights for r in archive.records] == ["made on another processor"]
    assert len(file.read_text().splitlines()) == 3


def test_who_has_newer_kernels_is_told_how_to_take_the_older_ones(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = record_of(run)
    for same, told in ((False, True), (True, False)):
        show_check(Check(record, {"every score": same}, {"cpu": ("AVX2", "AVX512")}))
        assert (OLDER_KERNELS in capsys.readouterr().out) == told
    show_check(Check(record, {"every score": False}, {"torch": ("2.12", "2.13")}))
    assert OLDER_KERNELS not in capsys.readouterr().out


def test_a_record_that_is_not_the_same_names_its_commit_and_says_whether_it_is_here(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    record = record_of(run)
    gone = replace(record, commit="0123456789ab")
    assert made_by(replace(record, commit="")) == "made outside a checkout: its commit is unknown"
    if here := records.commit().removesuffix("+"):
        assert made_by(replace(record, commit=here)) == f"made by commit {here} (git checkout {here})"
        assert made_by(replace(gone, commit="0123456789ab+")) == (
            "made by commit 0123456789ab with files changed since, which is not in this repository"
        )
        show_check(Check(gone, {"every score": False}, {}))
        out = capsys.readouterr().out
        assert f"made by commit 0123456789ab, which is not in this repository; run again by commit {here}" in out
    show_check(Check(gone, {"every score": True}, {}))
    assert "commit" not in capsys.readouterr().out
    with pytest.raises(UsageError, match="cannot be read by this version; it was made by commit 0123456789ab"):
        verified(replace(gone, experiment={**gone.experiment, "rounds": -1}))
    monkeypatch.setattr(records, "commit", lambda: "")
    assert made_by(gone) == "made by commit 0123456789ab", "outside a checkout nobody can look"


def _from_round_2(record: records.Record) -> dict[str, dict[str, list[float | None]]]:
    return {m: {name: list(curve[1:]) for name, curve in known.items()} for m, known in record.curves.items()}


@pytest.mark.parametrize(
    ("differ", "outcome"),
    [
        (set(), "the same bits"),
        ({"the last weights"}, "the same scores, other bits of the weights"),
        ({"every score", "the last weights"}, "NOT the same"),
        ({"the data", "the last weights"}, "NOT the same"),
    ],
)
def test_equal_scores_beside_other_weights_are_an_outcome_of_their_own(
    run: Path, capsys: pytest.CaptureFixture[str], differ: set[str], outcome: str
) -> None:
    parts = {part: part not in differ for part in PARTS.values()}
    show_check(Check(record_of(run), parts, {"processor": (None, "GenuineIntel 6 85")}))
    out = capsys.readouterr().out
    assert f": {outcome}\n" in out
    assert ("processor was not recorded, is GenuineIntel 6 85 here" in out) == bool(differ)


def test_a_record_is_verified_bit_by_bit_and_a_false_one_is_found_out(run: Path) -> None:
    record = record_of(run)
    assert verified(record).same
    early = verified(record, rounds=2)
    assert early.same
    assert "the curves to round 2" in early.parts
    sparse = replace(record, rounds=[2, 3], curves=_from_round_2(record))
    assert verified(sparse, rounds=2).same
    with pytest.raises(UsageError, match=r"rounds = 1: .* was first examined in round 2"):
        verified(sparse, rounds=1)
    other = replace(record, experiment={**record.experiment, "method": {**record.experiment["method"], "lr": 0.11}})
    check = verified(other)
    assert check.parts == {"the data": True, "the split": True, "every score": False, "the last weights": False}
    assert not verified(other, rounds=2).same


@pytest.fixture
def table(tmp_path: Path) -> Path:
    file = tmp_path / "tiny.toml"
    file.write_text(TABLE)
    return file


def test_the_queue_runs_what_has_no_record_once_and_in_order(table: Path, tmp_path: Path) -> None:
    """FedAvg's two rows are one run; a turn with more rounds answers the later turn with fewer."""
    archive, out = Archive(tmp_path / "results"), tmp_path / "runs"
    order = [
        queue.Turn(str(table), rows=("FedProx",)),
        queue.Turn(str(table), rows=("FedAvg",), rounds=3),
        queue.Turn(str(table), seeds=(1, 2)),
    ]
    asked = list(queue.wanted(order, archive, out))
    assert [(one.cell, one.job.plan.seed, one.job.plan.rounds) for one in asked] == [
        ("tiny · FedProx × all", 1, 2),
        ("tiny · FedAvg × all", 1, 3),
        ("tiny · FedAvg × all", 2, 2),
        ("tiny · FedProx × all", 2, 2),
    ]
    assert queue.carry_on(queue.wanted(order[:2], archive, out), archive, out, budget=1e6, at_once=1) == {}
    assert [record.cell for record in archive] == ["tiny · FedProx × all", "tiny · FedAvg × all"]
    assert all(record.cpu_seconds for record in archive)
    left = list(queue.wanted(order, archive, out))
    assert [(one.job.plan.title, one.job.plan.seed) for one in left] == [("fedavg", 2), ("fedprox", 2)]

    preset = read_preset(str(table))
    entries, done = reproduce.recorded(reproduce.plan(preset, out, seeds=3), archive)
    found = {(n.row, n.metric): n for n in reproduce.numbers(entries, done, {})}
    amp = found["FedAvg", "amp"]
    assert amp.mean == archive.records[1].curves["active"]["amp"][1]  # round 2 of 3
    assert found["FedAvg", "rounds_to:fedavg"].mean == 2
    assert found["FedProx", "rounds_to:fedavg"].ours


def test_a_table_of_times_takes_the_processor_s_from_records_and_says_where_there_is_none(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three rounds took the processor 6 s, so two of them 4; of seed 2 only a wall time is known, which is none."""
    file, archive = tmp_path / "tiny.toml", Archive(tmp_path / "results")
    file.write_text(TABLE.replace('["amp", "rounds_to:fedavg"]', '["seconds", "amp"]'))
    first = record_of(run, "tiny · FedAvg × all", cpu_seconds=6.0)
    second = replace(first, id="second", experiment={**first.experiment, "seed": 2}, cpu_seconds=None)

    def read(seeds: int) -> dict[tuple[str, str], reproduce.Number]:
        entries = reproduce.plan(read_preset(str(file)), tmp_path, seeds=seeds, rows=["FedAvg"])
        return {(n.row, n.metric): n for n in reproduce.numbers(*reproduce.recorded(entries, archive), {})}

    archive.add(first)
    seconds = read(1)["FedAvg", "seconds"]
    assert (seconds.ours, seconds.seeds, seconds.state) == ([4.0], [1], "")
    archive.add(second)
    both = read(2)
    assert (both["FedAvg", "seconds"].ours, both["FedAvg", "seconds"].seeds) == ([4.0], [1])
    assert both["FedAvg", "seconds"].state == "no undisturbed time of seed 2"
    assert (both["FedAvg", "amp"].seeds, both["FedAvg", "amp"].state) == ([1, 2], "")
    archive.add(replace(first, bits="made again", cpu_seconds=None))
    assert read(2)["FedAvg", "seconds"].state == "no undisturbed time"
    assert read(2)["FedAvg", "seconds"].ours == []
    assert "no undisturbed time" in call(["results", "table", str(file), "--results", str(archive.folder)], capsys)[1]
    assert "| FedAvg | – | " in result_pages.made(f'table {file} rows="FedAvg|FedProx"', archive), "its AMP is known"
    times = tmp_path / "times.toml"
    times.write_text(TABLE.replace('["amp", "rounds_to:fedavg"]', '["seconds"]'))
    archive.add(
        replace(
            first, id="prox", experiment={**first.experiment, "method": {"name": "fedprox", "lr": 0.1, "epochs": 1}}
        )
    )
    page = result_pages.made(f'table {times} rows="FedAvg|FedProx"', archive)
    assert "| FedProx | 4.00 | 1 |" in page
    assert page.endswith("\n\nNo undisturbed time: FedAvg.")


def test_a_spent_budget_stops_runs_that_the_next_call_takes_up(table: Path, tmp_path: Path) -> None:
    archive, out = Archive(tmp_path / "results"), tmp_path / "runs"
    order = [queue.Turn(str(table), rows=("FedAvg",))]
    assert queue.carry_on(queue.wanted(order, archive, out), archive, out, budget=0) == {}
    assert archive.records == []
    assert queue.carry_on(queue.wanted(order, archive, out), archive, out, budget=1e6) == {}
    assert len(archive.records) == 1


def test_what_another_queue_has_recorded_meanwhile_is_not_run(table: Path, tmp_path: Path) -> None:
    """While FedAvg runs here, the other queue adds FedProx's record."""
    archive, out = Archive(tmp_path / "results"), tmp_path / "runs"
    asked = list(queue.wanted([queue.Turn(str(table), rows=("FedAvg", "FedProx"))], archive, out))
    start(asked[1].job.plan, out=tmp_path, name="other")
    heard: list[str] = []

    def tell(news: batch.News) -> None:
        heard.append(f"{news.job.plan.title} {news.what}")
        if news.what == "started":
            Archive(archive.folder).add(record_of(tmp_path / "other", "tiny · FedProx × all"))

    assert queue.carry_on(asked, archive, out, budget=1e6, at_once=1, tell=tell) == {}
    assert heard[0] == "fedavg started"
    assert not [line for line in heard if line.startswith("fedprox")]
    assert sorted(record.cell for record in archive) == ["tiny · FedAvg × all", "tiny · FedProx × all"]
    file = archive.folder / "tiny.jsonl"
    assert len(file.read_text().splitlines()) == 2


def test_records_and_runs_have_folders_of_their_own(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="must be another folder than that of the runs"):
        queue.carry_on([], Archive(tmp_path), tmp_path, budget=0)


def test_a_finished_run_that_cannot_be_read_stops_no_other(table: Path, tmp_path: Path) -> None:
    archive, out = Archive(tmp_path / "results"), tmp_path / "runs"
    order = [queue.Turn(str(table), rows=("FedAvg", "FedProx"))]
    asked = list(queue.wanted(order, archive, out))
    for one in asked:
        start(replace(one.job.plan, rounds=2), out=one.job.path.parent, name=one.job.path.name)
    broken = asked[0].job.path
    (broken / "metrics.jsonl").write_text("")
    failed = queue.carry_on(queue.wanted(order, archive, out), archive, out, budget=1e6, at_once=1)
    assert list(failed) == [broken]
    assert [record.cell for record in archive] == ["tiny · FedProx × all"]


def test_a_teacher_and_each_of_its_students_have_a_record_and_a_number_of_their_own(tmp_path: Path) -> None:
    """One run makes the teacher of all three rows; two epochs of it, and of students of two generators."""
    table = tmp_path / "students.toml"
    rows = "".join(
        f"[[rows]]\nlabel = '{label}'\nmodel = '{model}'\n"
        f"method = {{ name = 'fedkf', lr = 0.2, noise = 8, channels = 4, generator = '{generator}' }}\n"
        for label, model, generator in (
            ("Teacher", "teacher", "light"),
            ("Student", "student", "light"),
            ("Noise", "student", "noise"),
        )
    )
    table.write_text(
        "title = 'students'\nkind = 'centralised'\nmetrics = ['accuracy']\n"
        "[base]\ndata = 'digits'\nclients = 1\nactive = 1.0\nrounds = 2\nlocal_test = 0.0\nmodel = 'mlp'\n"
        f"{rows}[[columns]]\nlabel = 'digits'\n"
    )
    archive, out = Archive(tmp_path / "results"), tmp_path / "runs"
    assert (
        queue.carry_on(queue.wanted([queue.Turn(str(table))], archive, out), archive, out, budget=1e6, at_once=1) == {}
    )
    assert len(archive.records) == 3
    entries, done = reproduce.recorded(reproduce.plan(read_preset(str(table)), out), archive)
    found = {n.row: n.ours for n in reproduce.numbers(entries, done, {})}
    students = {
        r.experiment["method"]["generator"]: r.curves["student"]["accuracy"][-1]
        for r in archive.records
        if "student" in r.curves
    }
    (teacher,) = (r for r in archive.records if "student" not in r.curves)
    assert found["Student"] == [students["light"]]
    assert found["Noise"] == [students["noise"]]
    assert found["Teacher"] == [teacher.curves["active"]["accuracy"][-1]]
    assert len({found[row][0] for row in found}) == 3


def test_the_queue_takes_no_settings_of_a_single_table(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--all", "--seeds", "3"], ["--all", "fedkf/table5"], []):
        with pytest.raises(SystemExit) as leave:
            cli.main(["reproduce", *words])
        assert leave.value.code == 2
        assert "reproduce" in capsys.readouterr().err


def test_the_shipped_order_names_cells_that_exist(tmp_path: Path) -> None:
    turns = queue.turns()
    first = next(iter(queue.wanted(turns, Archive(tmp_path), tmp_path)))
    assert first.cell.startswith(f"{turns[0].preset} · ")
    assert first.job.plan.seed == turns[0].seeds[0]
    assert {"fedkf/table5", "fedkf/table10"} <= {turn.preset for turn in turns}
    assert "fedtkd/table6" not in {turn.preset for turn in turns}, "no record answers for the times of modules"


@pytest.mark.parametrize("text", ["", "2", "2d", "h"])
def test_a_budget_is_a_time(text: str) -> None:
    with pytest.raises(UsageError, match="must be a time like 2h"):
        queue.seconds(text)


def call(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    with pytest.raises(SystemExit) as leave:
        cli.main(words)
    return int(leave.value.code or 0), capsys.readouterr().out


def test_the_commands_add_list_show_compare_and_verify(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--results", str(tmp_path)]
    code, out = call(["results", "add", str(run), *where], capsys)
    id = record_id(experiment(SMALL))
    assert (code, out.startswith(id)) == (0, True)
    code, out = call(["results", *where, "--where", "method=fedavg", "--json"], capsys)
    (brief,) = json.loads(out)
    assert (brief["id"], brief["seed"], set(brief["last"])) == (id, 1, {"active", "overall"})
    assert call(["results", *where, "--where", "method=fedkf"], capsys)[0] == 2
    code, out = call(["results", "show", id[:5], *where, "--json"], capsys)
    assert Record(**json.loads(out)).id == id
    code, out = call(["results", "compare", *where, "--json"], capsys)
    assert [(row["model"], row["seconds"]) for row in json.loads(out)] == [("active", None), ("overall", None)]
    code, out = call(["results", "verify", id, *where], capsys)
    assert (code, "the same bits" in out) == (0, True)
    file = tmp_path / "own.jsonl"
    file.write_text(file.read_text().replace('"lr":0.1', '"lr":0.2'))
    code, out = call(["results", "verify", id, *where], capsys)
    assert (code, "NOT the same" in out) == (1, True)


def test_the_paper_s_own_size_is_looked_for_among_the_records(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table has two rounds, the paper three: the record of three rounds answers both, at round 2 and at round 3."""
    file, archive = tmp_path / "sizes.toml", Archive(tmp_path / "results")
    file.write_text(TABLE.replace("[[columns]]", "[full]\nrounds = 3\n[[columns]]", 1))
    record = record_of(run)
    archive.add(record)
    for words, place in (([], 1), (["--full"], 2)):
        told = json.loads(
            call(["results", "table", str(file), "--results", str(archive.folder), "--json", *words], capsys)[1]
        )
        (amp,) = (n["mean"] for n in told["numbers"] if (n["row"], n["metric"]) == ("FedAvg", "amp"))
        assert amp == record.curves["active"]["amp"][place]


def test_what_left_a_client_in_a_record_is_what_would_leave_it_today() -> None:
    """A setting that came later reads as its default: where that default did something new, a record of before would
    answer for what it never did, as those of FedSteady before κ once did."""
    archive = Archive(Path(__file__).parents[2] / "results")
    told = {
        record.id: (set(record.bytes["up"]), {f.name for f in fields(record.plan.method.uploads())})
        for record in archive
        if record.plan is not None and record.bytes["up"]  # a student without data sends nothing
    }
    assert told
    assert not {id: names for id, names in told.items() if names[0] != names[1]}


def test_one_check_that_cannot_be_made_takes_no_other_with_it(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three records the second was first examined in round 3; an unknown id is told before anything is run."""
    archive, record = Archive(tmp_path), record_of(run)
    late = {m: {name: list(curve[2:]) for name, curve in known.items()} for m, known in record.curves.items()}
    for name in ("a1", "c3"):
        archive.add(replace(record, id=name))
    archive.add(replace(record, id="b2", rounds=[3], curves=late))
    words = ["results", "verify", "a1", "b2", "c3", "--rounds", "1", "--results", str(tmp_path)]
    with pytest.raises(SystemExit) as leave:
        cli.main(words)
    out, err = capsys.readouterr()
    assert leave.value.code == 1
    assert [line.split()[0] for line in out.splitlines() if "the same bits" in line] == ["a1", "c3"]
    assert err == "fedstill: b2: rounds = 1: b2 was first examined in round 3\n"
    code, out = call([*words, "--json"], capsys)
    assert code == 1
    assert [(entry["id"], entry["same"]) for entry in json.loads(out)] == [("a1", True), ("b2", None), ("c3", True)]
    assert json.loads(out)[1]["error"] == "rounds = 1: b2 was first examined in round 3"
    monkeypatch.setattr("fedstill.experiment.verify.verified", lambda *_: pytest.fail("nothing may run"))
    assert call(["results", "verify", "a1", "zz", "--results", str(tmp_path)], capsys) == (2, "")


def test_numbers_are_compared_as_numbers_and_a_setting_that_nobody_has_is_an_error(run: Path) -> None:
    record = record_of(run)
    for text, fits in {
        "alpha=0.10": True,
        "alpha=1e-1": True,
        "partition.alpha=.1": True,
        "seed=1.0": True,
        "alpha=0.2": False,
        "alpha=many": False,
        "data=dig*": True,
        "public=None": True,
    }.items():
        assert (fitting([record], [text]) == [record]) == fits, text
    for name, near in {"sede": "seed", "method.lrr": "method.lr", "partition.alhpa": "partition.alpha"}.items():
        with pytest.raises(UsageError, match=f"unknown setting '{name}'; did you mean {near}?"):
            fitting([record], [f"{name}=None"])


def test_what_stands_in_brackets_is_shown_as_it_is(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In rich's own markup [red] is a colour, and [/] the end of none: it would vanish, or be an error."""
    monkeypatch.setenv("COLUMNS", "300")
    record = record_of(run, "tiny · FedAvg [red] × [/] all")
    odd = {**record.experiment, "tag": ["[b]"], "data": "my[bold]data.csv"}
    record = replace(record, experiment=odd, versions={**record.versions, "platform": "[/]"})
    Archive(tmp_path).add(record)
    for words in ([], ["show", record.id]):
        code, out = call(["results", *words, "--results", str(tmp_path)], capsys)
        assert code == 0
        assert "tiny · FedAvg [red] × [/] all" in out
        assert "fedavg my[bold]data α" in out
        assert "#[b]" in out or words
    show_check(Check(record, {"every score": False}, {"torch": ("[/]", "2")}))
    assert "fedavg my[bold]data α" in capsys.readouterr().out
