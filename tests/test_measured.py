"""The table of benchmarks comes from their records."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("measured", BENCHMARKS / "measured.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "measured", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "RECORDS", tmp_path / "records")
    return module


def entry(commit: str, ratio: float, load: float | None) -> dict[str, Any]:
    return {"machine": {"commit": commit, "load": load}, "numbers": {"fedkf": ratio}}


def test_a_row_is_the_median_at_the_newest_commit(measured: Any) -> None:
    """2, 4 and 3 at `new`: the median is 3; what was seen at `old` is history."""
    measured.RECORDS.mkdir()
    record = [entry("old", 9.0, None), entry("new", 2.0, 0.1), entry("new", 4.0, 0.5), entry("new", 3.0, 0.2)]
    (measured.RECORDS / "turn.json").write_text(json.dumps(record))
    row = next(row for row in measured.rows() if "turn.py" in row)
    assert row.endswith("| FedKF 3.0 (2.0–4.0)× | 3 at new, 0.1–0.5 |")
    assert "no repetition is on record yet" in next(row for row in measured.rows() if "trust.py" in row)


def test_only_who_asks_for_it_adds_to_the_record(measured: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    about = {"commit": "abc", "load": 0.0}
    monkeypatch.setattr(sys, "argv", ["turn.py"])
    measured.note("turn", {"fedkf": 2.0}, about)
    assert not measured.RECORDS.exists()
    monkeypatch.setattr(sys, "argv", ["turn.py", "--record"])
    measured.note("turn", {"fedkf": 2.0}, about)
    measured.note("turn", {"fedkf": 2.5}, about)
    assert [e["numbers"]["fedkf"] for e in json.loads((measured.RECORDS / "turn.json").read_text())] == [2.0, 2.5]


def test_the_page_is_what_the_records_say(measured: Any) -> None:
    """Whoever adds to a record, or changes a title, makes the table anew: `python benchmarks/measured.py`."""
    measured.RECORDS = BENCHMARKS / "records"
    _, _, rest = measured.PAGE.read_text().partition(measured.BEGIN)
    table, mark, _ = rest.partition(measured.END)
    assert mark
    assert table.strip() == "\n".join(measured.rows())


def test_the_audit_s_table_is_what_its_record_says(measured: Any) -> None:
    measured.RECORDS = BENCHMARKS / "records"
    _, _, rest = measured.PRIVACY.read_text().partition(measured.AUDIT)
    table, mark, _ = rest.partition(measured.END)
    assert mark
    assert table.strip() == "\n".join(measured.audit_rows())
    assert len(table.strip().splitlines()) > 10
