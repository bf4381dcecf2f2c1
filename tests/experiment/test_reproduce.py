"""A paper's table with one command: what runs, what does not run again, and the numbers beside the paper's."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from smallest import FEDAVG_ROWS, preset_base

from fedstill import cli
from fedstill.core.errors import UsageError
from fedstill.experiment import batch, reproduce
from fedstill.experiment.config import experiment
from fedstill.experiment.lock import writer
from fedstill.experiment.presets import read_preset
from fedstill.experiment.result import Result
from fedstill.experiment.run import start
from fedstill.experiment.rundir import RunDir
from fedstill.report import paper_table, progress

TABLE = f"""
title = "A tiny table"
paper = "Nobody"
source = "table 0"
kind = "table"
metrics = ["amp", "rounds_to:fedavg", "speedup"]
{preset_base(samples=400, rounds=3)}[full]
rounds = 9
{FEDAVG_ROWS}[[rows]]
label = "FedProx"
method = {{ name = "fedprox", lr = 0.1, epochs = 1 }}
model = "global"
full_method = {{ mu = 0.5 }}
[[rows]]
label = "FedNothing"
method = {{ name = "fednothing" }}
[[columns]]
label = "α = 1"
set = {{ partition = {{ name = "dirichlet", alpha = 1.0 }} }}
methods = {{ fedprox = {{ mu = 0.125 }} }}
[[columns]]
label = "α = 0.1"
set = {{ partition = {{ name = "dirichlet", alpha = 0.1 }}, rounds = 2 }}
full_set = {{ rounds = 4 }}
only = ["FedAvg"]
[numbers."FedAvg"]
"α = 1" = {{ amp = [0.5, 0.01], "rounds_to:fedavg" = 3, speedup = 1 }}
[numbers."FedProx"]
"α = 1" = {{ amp = 0.25, "rounds_to:fedavg" = ">3", speedup = "<1" }}
"""


@pytest.fixture(scope="module", autouse=True)
def _warm() -> None:
    """What a first run imports is then there in every forked one."""
    start(
        experiment(
            {
                "method": {"name": "fedavg", "epochs": 1},
                "data": "digits",
                "clients": 2,
                "rounds": 1,
                "workers": "inline",
            }
        ),
        out=None,
    )


@pytest.fixture
def table(tmp_path: Path) -> Path:
    file = tmp_path / "tiny.toml"
    file.write_text(TABLE)
    return file


def bits(path: Path) -> tuple[list[dict[str, Any]], str]:
    """All that a run computed, without the seconds it took."""
    timed = ("seconds", "client_seconds")
    rows = [{key: value for key, value in row.items() if key not in timed} for row in RunDir(path).rows()]
    return rows, sorted((path / "checkpoints").glob("*.json"))[-1].read_text()


def test_a_cell_is_base_then_column_then_row(table: Path) -> None:
    cells = {(c.row, c.column): c for c in read_preset(str(table)).cells()}
    assert len(cells) == 5  # the second column has FedAvg only
    assert cells["FedProx", "α = 1"].settings["method"] == {"name": "fedprox", "lr": 0.1, "epochs": 1, "mu": 0.125}
    assert cells["FedAvg", "α = 1"].settings["rounds"] == 3
    assert cells["FedAvg", "α = 0.1"].settings["rounds"] == 2
    full = {(c.row, c.column): c for c in read_preset(str(table)).cells(full=True)}
    assert full["FedAvg", "α = 1"].settings["rounds"] == 9
    assert full["FedAvg", "α = 0.1"].settings["rounds"] == 4
    assert full["FedProx", "α = 1"].settings["method"]["mu"] == 0.125  # what the column says of a method comes last


def test_rows_that_differ_in_the_model_share_their_runs(table: Path, tmp_path: Path) -> None:
    entries = reproduce.plan(read_preset(str(table)), tmp_path, seeds=2)
    jobs = {(e.cell.row, e.cell.column): e.jobs for e in entries}
    assert jobs["FedAvg", "α = 1"] == jobs["FedAvg (OCA)", "α = 1"] != jobs["FedProx", "α = 1"]
    assert [j.path.name for j in jobs["FedAvg", "α = 1"]] == ["seed-1", "seed-2"]
    assert jobs["FedNothing", "α = 1"] == ()
    assert next(e for e in entries if e.cell.row == "FedNothing").why_not == "method fednothing is not available"


def test_a_seed_is_no_setting_of_all_cells(table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every cell has the preset's own: another would be passed over without a word."""
    with pytest.raises(SystemExit) as left:
        cli.main(["reproduce", str(table), "--set", "seed=7", "--out", str(tmp_path), "--dry-run"])
    assert left.value.code == 2
    assert "fedstill: --set seed: runs have seeds from 1 on; say how many with --seeds" in capsys.readouterr().err


def test_a_misspelt_setting_is_an_error_and_names_the_cell(table: Path, tmp_path: Path) -> None:
    table.write_text(TABLE.replace("samples = 400", "sampels = 400"))
    with pytest.raises(
        UsageError, match=r"tiny, 'FedAvg' × 'α = 1': unknown setting of Experiment 'sampels'; did you mean samples"
    ):
        reproduce.plan(read_preset(str(table)), tmp_path)


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        (TABLE.replace('kind = "table"', 'kind = "tabel"'), "kind = 'tabel': must be one of table"),
        (TABLE.replace('model = "active"', 'modell = "active"'), "in a row 'modell'; did you mean model"),
        (TABLE.replace('[numbers."FedProx"]', '[numbers."FedPox"]'), "'FedPox'; did you mean FedProx"),
        ("title = 3 4", "tiny.toml: "),
        (TABLE.replace("[[rows]]", "[[lines]]"), "has no 'rows'"),
        (TABLE.replace('label = "FedProx"', 'label = "FedAvg"'), "tiny.toml: two rows have the label 'FedAvg'"),
        (TABLE.replace('label = "α = 0.1"', 'label = "α = 1"'), "tiny.toml: two columns have the label 'α = 1'"),
        (TABLE.replace('label = "FedProx"\n', ""), "label = None of one of the rows: must be a text"),
        (TABLE.replace('label = "α = 1"', "label = 1"), "label = 1 of one of the columns: must be a text"),
        (TABLE.replace('{ name = "fednothing" }', "{ lr = 1 }"), "row 'FedNothing': its method has no name"),
        (TABLE.replace("[0.5, 0.01]", "[0.5]"), r"'FedAvg' × 'α = 1': amp = \[0.5\]: must be a number, \[mean, spr"),
        (TABLE + '[numbers."FedAvg (OCA)"]\n"α = 1" = 0.5\n', r"numbers of 'FedAvg \(OCA\)': must be column = "),
        (TABLE + '[claims]\ntext = "so"\n', "claims = {'text': 'so'}: must be tables, "),
    ],
)
def test_a_misspelt_preset_is_an_error(wrong: str, word: str, tmp_path: Path) -> None:
    file = tmp_path / "tiny.toml"
    file.write_text(wrong)
    with pytest.raises(UsageError, match=word):
        read_preset(str(file))


def test_a_preset_that_is_no_text_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "tiny.toml"
    file.write_bytes(TABLE.encode("latin-1", "replace").replace(b"A tiny", b"Une \xe9tude"))
    with pytest.raises(UsageError, match=r"tiny.toml: is not UTF-8 text \(byte 14\)"):
        read_preset(str(file))


def test_two_at_once_give_the_same_bits_as_one_by_one_and_nothing_runs_twice(table: Path, tmp_path: Path) -> None:
    preset = read_preset(str(table))
    one = reproduce.plan(preset, tmp_path / "one", seeds=2, columns=["α = 1"])
    two = reproduce.plan(preset, tmp_path / "two", seeds=2, columns=["α = 1"])
    assert batch.carry_out(one, tmp_path / "one", 1) == {}
    assert batch.carry_out(two, tmp_path / "two", 2) == {}
    paths = sorted({job.path for e in one for job in e.jobs})
    assert len(paths) == 4
    for path in paths:
        assert bits(path) == bits(tmp_path / "two" / path.relative_to(tmp_path / "one"))
    told: list[batch.News] = []
    batch.carry_out(one, tmp_path / "one", 2, told.append)
    assert [news.what for news in told] == ["kept"] * 4

    done = batch.results(one)
    found = {(n.row, n.column, n.metric): n for n in reproduce.numbers(one, done, {})}
    avg = [Result.read(j.path) for j in next(e for e in one if e.cell.row == "FedAvg").jobs]
    amps = [run.rows[-1]["models"]["active"]["amp"] for run in avg]
    first = found["FedAvg", "α = 1", "amp"]
    assert first.mean == pytest.approx(sum(amps) / 2)
    assert first.difference == pytest.approx(sum(amps) / 2 - 0.5)
    assert (found["FedAvg", "α = 1", "rounds_to:fedavg"].mean, found["FedAvg", "α = 1", "speedup"].mean) == (3, 1)
    assert found["FedProx", "α = 1", "rounds_to:fedavg"].difference is None  # the paper says > 3
    assert found["FedNothing", "α = 1", "amp"].state == "method fednothing is not available"
    page = paper_table.page(preset, one, done, list(found.values()), {}, tmp_path, "again")
    assert page is not None
    assert f'data-metric="amp">{100 * first.mean:.2f}' in page.read_text()


def test_killed_half_way_and_started_again_does_only_what_is_missing(table: Path, tmp_path: Path) -> None:
    """Killed (SIGKILL) once a run is finished and another has ended a round: the first is left, the other goes on."""
    rounds = 100  # the orphaned run ends itself within a second, long before its last round
    slow = ["--set", f"rounds={rounds}", "--seeds", "1", "--jobs", "1", "--row", "Fed[AP]*", "--column", "α = 1"]
    words = ["reproduce", str(table), "--out", str(tmp_path / "runs"), *slow]
    code = "import sys; from fedstill.cli import main; main(sys.argv[1:])"
    process = subprocess.Popen([sys.executable, "-c", code, *words], stderr=subprocess.DEVNULL, start_new_session=True)
    room = tmp_path / "runs" / "tiny"

    def written(name: str) -> int:
        return sum(len(f.read_text().splitlines()) for f in room.glob(f"{name}-*/seed-1/metrics.jsonl"))

    until = time.monotonic() + 240
    while written("fedprox") < 2 and time.monotonic() < until and process.poll() is None:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    (finished,) = room.glob("fedavg-*/seed-1")
    (stopped,) = room.glob("fedprox-*/seed-1")
    while writer(stopped) is not None and time.monotonic() < until:
        time.sleep(0.05)
    assert 2 <= written("fedprox") < rounds
    before = {f: f.stat().st_mtime_ns for f in finished.rglob("*") if f.is_file()}
    early = (stopped / "metrics.jsonl").read_text().splitlines()[0]

    with pytest.raises(SystemExit) as left:
        cli.main(words)
    assert left.value.code == 0
    assert {f: f.stat().st_mtime_ns for f in finished.rglob("*") if f.is_file()} == before
    lines = (stopped / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == rounds
    assert lines[0] == early  # with its seconds: that round was not run again
    again = reproduce.plan(
        read_preset(str(table)), tmp_path / "other", rounds=rounds, rows=["FedProx"], columns=["α = 1"]
    )
    batch.carry_out(again, tmp_path / "other", 1)
    assert bits(again[0].jobs[0].path)[0] == bits(stopped)[0]


def test_a_run_that_fails_is_named_and_the_others_go_on(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table.write_text(
        TABLE.replace(
            'lr = 0.1, epochs = 1 }\nmodel = "global"',
            'lr = 0.1, epochs = 1 }\nmodel = "global"\nset = { data = "nowhere.npz" }',
        )
        + "[[claims]]\ntext = 'twice as fast'\nleft = 'FedAvg'\nrelation = 'is'\nvalue = 2\n"
        + "metrics = ['speedup']\ncolumns = 'α = 1'\n"
    )
    with pytest.raises(SystemExit) as left:
        cli.main(["reproduce", str(table), "--out", str(tmp_path), "--rounds", "1", "--column", "α = 1", "--json"])
    assert left.value.code == 1
    out = capsys.readouterr()
    told = json.loads(out.out)
    found = {(n["row"], n["metric"]): n for n in told["numbers"]}
    assert "nowhere.npz" in found["FedProx", "amp"]["state"]
    assert found["FedAvg", "amp"]["mean"] is not None
    assert [(claim["claim"], claim["verdict"]) for claim in told["claims"]] == [("twice as fast", "not held")], (
        "it is 1"
    )
    assert json.loads((tmp_path / "tiny" / "table.json").read_text()) == told


def test_dry_run_runs_nothing_and_says_how_long(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["reproduce", str(table), "--out", str(tmp_path / "runs"), "--seeds", "3", "--dry-run"])
    out = capsys.readouterr().out
    assert "FedNothing × α = 1: method fednothing is not available" in out
    assert "FedAvg × α = 1: 3 of 3 runs, about " in out
    assert "FedAvg (OCA) × α = 1: 0 of 3 runs, the same as above" in out
    assert "in all about " in out
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_a_misspelt_claim_is_told_before_anything_runs(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    table.write_text(TABLE + '[[claims]]\ntext = "so"\nleft = "FedProx"\nrigth = "FedAvg"\n')
    with pytest.raises(SystemExit) as left:
        cli.main(["reproduce", str(table), "--out", str(tmp_path / "runs"), *more])
    assert left.value.code not in (0, None)
    assert "unknown key of a claim of tiny 'rigth'; did you mean right" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


WHO = """
title = "Who"
kind = "partition"
metrics = []
[base]
data = "digits"
clients = 4
[[rows]]
label = "p"
[[columns]]
label = "α = 1"
set = { partition = { name = "dirichlet", alpha = 1.0 } }
"""


def test_a_partition_is_drawn_without_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "who.toml"
    file.write_text(WHO)
    with pytest.raises(SystemExit) as left:
        cli.main(["reproduce", str(file), "--out", str(tmp_path)])
    assert left.value.code == 0
    page = Path(capsys.readouterr().out.strip())
    assert page == tmp_path / "who" / "report.html"
    assert 'src="data:image/svg+xml' in page.read_text()
    assert (tmp_path / "who" / "1.svg").exists()


def test_without_fedavgs_first_row_there_is_no_yardstick_and_no_other_row_becomes_one(
    table: Path, tmp_path: Path
) -> None:
    """FedAvg ends at .5, which FedProx reaches in round 2; FedAvg at twice the rate ends at .2, reached in round 1."""
    table.write_text(TABLE.replace('lr = 0.1, epochs = 1 }\nmodel = "overall"', "lr = 0.2, epochs = 1 }"))
    entries = reproduce.plan(read_preset(str(table)), tmp_path, columns=["α = 1"], rows=["FedAvg*", "FedProx"])
    curves = {"FedAvg": [0.4, 0.5], "FedAvg (OCA)": [0.3, 0.2], "FedProx": [0.2, 0.6]}
    done = {
        entry.jobs[0].path: Result(
            {"method": {"name": "m"}},
            [{"round": t + 1, "models": {"active": {"amp": a}}} for t, a in enumerate(curves[entry.cell.row])],
        )
        for entry in entries
    }

    def rounds(kept: Sequence[reproduce.Entry]) -> list[Any]:
        found = reproduce.numbers(kept, done, {})
        return [n.ours for n in found if n.row == "FedProx" and n.metric == "rounds_to:fedavg"]

    assert rounds(entries) == [[2.0]]
    first = next(entry for entry in entries if entry.cell.row == "FedAvg")
    unrecorded = replace(first, plans=(), jobs=(), why_not="not run yet")
    assert rounds([unrecorded if entry is first else entry for entry in entries]) == [[None]]
    assert rounds([entry for entry in entries if entry is not first]) == [[None]], "not among the chosen rows"


def test_what_was_set_otherwise_than_in_the_paper_stands_beside_the_numbers(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """FedAvg × α = 1 runs 9 rounds in the paper. With --full nothing differs, and Δ has a colour; with rounds=3 not."""
    preset = read_preset(str(table))
    paper = reproduce.plan(preset, tmp_path, full=True, rows=["FedAvg"], columns=["α = 1"])
    less = reproduce.plan(
        preset, tmp_path, rounds=3, override={"method": {"lr": "0.2"}}, rows=["FedAvg"], columns=["α = 1"]
    )
    cell = ("FedAvg", "α = 1")
    assert paper_table.differences(preset, paper) == {cell: []}
    differ = paper_table.differences(preset, less)
    assert differ == {cell: ["lr=0.2 instead of 0.1", "rounds=3 instead of 9"]}
    numbers = [reproduce.Number("FedAvg", "α = 1", "amp", [0.75], 0.5)]
    same = paper_table.section(numbers, "", "table 0", paper_table.differences(preset, paper))
    other = paper_table.section(numbers, "", "table 0", differ)
    assert '<td class="up">+25.00</td>' in same
    assert "<td>+25.00</td>" in other
    assert '<span class="pill">rounds=3 instead of 9</span>' in other
    paper_table.show(numbers, "A tiny table", differ)
    assert "(rounds=3 instead of 9)" in capsys.readouterr().out


def test_one_reason_for_many_cells_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three cells without their data: each says that its time is unknown, the hint stands once below."""

    def missing(plan: Any) -> float:
        raise UsageError("emnist-letters is not on this machine; put its files under FEDSTILL_DATA")

    monkeypatch.setattr(progress.estimate, "round_seconds", missing)
    plans = [experiment({"method": {"name": name}, "data": "digits"}) for name in ("fedavg", "fedprox", "fedkf")]
    lines = progress.forecast([(plan.title, [batch.job(plan, tmp_path)]) for plan in plans], 1)
    assert sum("FEDSTILL_DATA" in line for line in lines) == 1
    assert sum("unknown time (see below)" in line for line in lines) == 3
