"""The table of the benchmark against other packages comes from its record."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def peers() -> Any:
    spec = importlib.util.spec_from_file_location("peers", BENCHMARKS / "peers.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["peers"] = module
    before = list(sys.path)
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = before
    del sys.modules["peers"]


def entry(ours: float, other: float, commit: str = "abc") -> dict[str, Any]:
    runs = {
        "fedstill": {"seconds": ours, "accuracy": 0.9, "peak": 400.0},
        "pfl": {"seconds": other, "accuracy": 0.91, "peak": 500.0},
        "flwr": {"error": "cannot be installed: no such version"},
    }
    return {"work": "tiny", "machine": {"commit": commit}, "threads": 1, "runs": runs}


def test_ratios_are_those_of_each_repetition(peers: Any) -> None:
    """30/10, 40/10 and 44/11 ms: 3, 4 and 4 times; their median is 4; what was seen at an older commit is
    history. Who failed has a reason instead of numbers."""
    before = entry(0.010, 0.900, "an older commit")
    rows = list(peers.rows([before, entry(0.010, 0.030), entry(0.010, 0.040), entry(0.011, 0.044)]))[2:]
    assert rows[0].endswith("| fedstill | 10.0 (10.0–11.0) |  | 0.900 | 400 | 3 |")
    assert rows[1].endswith("| pfl | 40.0 (30.0–44.0) | 4.00× (3.00–4.00) | 0.910 | 500 | 3 |")
    assert rows[2].endswith("| flwr | cannot be installed: no such version | | | | |")


def test_the_table_replaces_what_stands_between_its_marks(
    peers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, record = tmp_path / "page.md", tmp_path / "record.json"
    page.write_text(f"before\n{peers.BEGIN}\nold\n{peers.END}\nafter\n")
    monkeypatch.setattr(peers, "PAGE", page)
    monkeypatch.setattr(peers, "RECORD", record)
    with pytest.raises(SystemExit, match="no record yet"):
        peers.write_table()
    about = {"date": "2026-01-02 03:04", "commit": "abc", "load": 0.1, "cores": 2, "torch": "2.13"}
    record.write_text(peers.json.dumps([{**entry(0.01, 0.03), "machine": about}]))
    peers.write_table()
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "3.00×" in text
    assert "2026-01-02 at abc" in text


def test_clients_share_the_training_samples_without_overlap(peers: Any) -> None:
    work = peers.WORK["tiny"]
    parts = [work.part(k) for k in range(work.clients)]
    assert [part.start for part in parts[1:]] == [part.stop for part in parts[:-1]]
    assert parts[-1].stop == work.clients * work.samples == 60_000
    assert len(set(work.active_in(3))) == work.active


def test_who_ran_fewer_rounds_has_that_said_beside_its_accuracy(peers: Any, tmp_path: Path) -> None:
    work = peers.WORK["tiny"]
    assert peers.early({"rounds": 10}, work) == " after 10 rounds"
    assert peers.early({"rounds": work.rounds}, work) == ""
    plan = tmp_path / "tiny.json"
    plan.write_text(peers.plainly(work))
    fewer = peers.json.loads(peers.shortened(plan, work, 10).read_text())
    assert (fewer["rounds"], fewer["warm"], fewer["clients"]) == (10, 2, 1000)
    assert peers.shortened(plan, work, 500) == plan
