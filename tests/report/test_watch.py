"""The live page: what it tells of runs, from their folders alone."""

import json
import shutil
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import dom, needs_browser
from looked_at import made, rows

from fedstill.core.errors import UsageError
from fedstill.experiment.config import experiment
from fedstill.experiment.drive import active
from fedstill.experiment.lock import writing
from fedstill.report import watch


@pytest.fixture(name="comparison")
def _comparison() -> Path:
    return made()


@pytest.fixture
def going(comparison: Path, tmp_path: Path) -> Path:
    """A finished run, and one that has ended two of three rounds."""
    runs = tmp_path / "runs"
    for name in ("fedavg-1", "fedkf-1"):
        shutil.copytree(comparison / name, runs / name)
    lines = (runs / "fedkf-1" / "metrics.jsonl").read_text().splitlines(keepends=True)
    (runs / "fedkf-1" / "metrics.jsonl").write_text("".join(lines[:2]))
    (runs / "fedkf-1" / "result.json").unlink()
    return runs


@pytest.fixture
def address(going: Path) -> Iterator[str]:
    with writing(going / "fedkf-1"), watch.server(going, 0) as here:
        thread = threading.Thread(target=here.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{here.server_port}/"
        here.shutdown()
        thread.join()


def get(address: str, **headers: str) -> Any:
    with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=10) as answer:
        return answer.read().decode()


def test_it_tells_who_trains_how_much_was_sent_and_what_is_left(address: str, going: Path) -> None:
    done, here = json.loads(get(address + "state.json"))["runs"]
    written = rows(going / "fedkf-1")
    assert (done["status"], done["left"], done["training"]) == ("finished", None, [])
    assert (here["status"], here["done"], here["planned"]) == ("running", 2, 3)
    plan = experiment(json.loads((going / "fedkf-1" / "experiment.json").read_text()))
    assert here["training"] == active(plan, 2)  # round 3 is going on; who is active in it follows from the seed
    assert here["bytes"]["up"] == sum(sum(row["bytes"]["up"].values()) for row in written)
    spent = [sum(row["seconds"].values()) for row in written]
    assert here["left"] == pytest.approx(sum(spent) / 2)  # one round more, at the mean pace
    assert here["models"]["overall"]["amp"] == [row["models"]["overall"]["amp"] for row in written]


def test_where_rounds_are_examined_beside_the_next_one_it_tells_who_trains_by_now(address: str, going: Path) -> None:
    """Of three rounds one has been told, when two were trained: the third goes on. Told of two: nobody trains."""
    file = going / "fedkf-1" / "metrics.jsonl"
    plan = experiment(json.loads((going / "fedkf-1" / "experiment.json").read_text()))
    lines = [json.dumps({**row, "trained": row["round"] + 1}) + "\n" for row in rows(going / "fedkf-1")]
    for told, training in ((1, active(plan, 2)), (2, [])):
        file.write_text("".join(lines[:told]))
        assert json.loads(get(address + "state.json"))["runs"][1]["training"] == training


def test_curves_move(address: str, going: Path, comparison: Path) -> None:
    assert json.loads(get(address + "state.json"))["runs"][1]["rounds"] == [1, 2]
    last = (comparison / "fedkf-1" / "metrics.jsonl").read_text().splitlines()[2]
    with (going / "fedkf-1" / "metrics.jsonl").open("a") as file:
        file.write(last[:50])
        file.flush()
        assert json.loads(get(address + "state.json"))["runs"][1]["rounds"] == [1, 2]  # half a line is not a round
        file.write(last[50:] + "\n")
    assert json.loads(get(address + "state.json"))["runs"][1]["rounds"] == [1, 2, 3]


def test_a_run_that_nobody_writes_is_not_running_whatever_its_files_say(going: Path) -> None:
    run = watch.Observed(going / "fedkf-1")
    with writing(going / "fedkf-1"):
        assert run.state()["status"] == "running"
    assert run.state()["status"] == "stopped"
    (going / "fedkf-1" / "last_error.txt").write_text("it broke")
    assert run.state()["status"] == "failed"


def test_only_this_machine_is_answered(address: str) -> None:
    with pytest.raises(urllib.error.HTTPError, match="403"):
        get(address, Host="somewhere.example")
    with pytest.raises(urllib.error.HTTPError, match="404"):
        get(address + "../../etc/passwd")
    assert "connect-src 'self'" in get(address)


def test_a_folder_without_runs_waits(tmp_path: Path) -> None:
    assert watch.Observatory(tmp_path).state()["notes"] == [f"{tmp_path}: no run there yet; waiting"]
    with pytest.raises(UsageError, match="no such folder"):
        watch.server(tmp_path / "nowhere", 0)


@needs_browser
def test_the_page_shows_both_runs(address: str, tmp_path: Path) -> None:
    source, console = dom(address, tmp_path)
    assert console == []
    assert 'data-drawn="yes"' in source
    assert source.count("<article") == 2
    assert "training in round 3" in source
