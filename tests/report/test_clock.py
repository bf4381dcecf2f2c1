"""Virtual time in results, tables and reports, from rows whose numbers can be read off."""

from typing import Any

from fedstill.experiment.result import Result
from fedstill.experiment.table_metrics import Beyond, described, reading
from fedstill.report.clock import lateness, section_of
from fedstill.report.digest import Series


def result(times: list[float], amps: list[float], late: int = 0, clock: bool = True) -> Result:
    rows: list[dict[str, Any]] = []
    for number, (time, amp) in enumerate(zip(times, amps, strict=True), 1):
        scores = {"amp": amp, "fm": 0.0, "wlp": amp, "accuracy": amp, "accuracy_per_client": [amp]}
        row = {
            "round": number,
            "active": [0],
            "missing": {},
            "models": {"active": scores},
            "bytes": {"down": {}, "up": {}},
            "seconds": {"server": 1.0},
        }
        rows.append(row | ({"pace": {"time": time, "started": [], "arrived": [[0, late]]}} if clock else {}))
    settings = {"method": {"name": "fedavg"}, "data": "digits", "seed": 1, "clients": 1, "rounds": len(rows)}
    return Result(settings, rows)


def test_time_to_a_target_is_the_time_of_the_round_that_reaches_it() -> None:
    run = result([1.5, 4.0, 9.0], [0.2, 0.6, 0.8])
    assert run.time_to("active", "amp", 0.5) == 4.0
    assert run.time_to("active", "amp", 0.9) is None
    assert run.time == 9.0
    assert run.to_frame()["time"].tolist() == [1.5, 4.0, 9.0]
    assert run.summary()["time"] == 9.0


def test_a_run_without_a_clock_has_no_time() -> None:
    run = result([1.5, 4.0], [0.2, 0.6], clock=False)
    assert run.time is None
    assert run.time_to("active", "amp", 0.5) is None
    assert "time" not in run.summary()
    assert "time" not in run.to_frame()
    assert reading("time_to:0.5", run, "active") is None
    assert section_of([Series("digits", "fedavg", "active", (run,))]) == ""


def test_presets_can_ask_for_the_time_to_an_accuracy() -> None:
    run = result([1.5, 4.0], [0.2, 0.6])
    assert reading("time_to:0.5", run, "active") == 4.0
    assert reading("time_to:0.9", run, "active") == Beyond(4.0, 2)
    assert described("time_to:0.85").title == "virtual time to 85 %"


def test_the_report_compares_times_to_what_all_reach() -> None:
    """Both reach 80 %: the first at 9, the second at 5; 80 % of it, 64 %, at 9 and 3; 90 % of it, 72 %, at 9 and 5."""
    slow, fast = result([1.5, 4.0, 9.0], [0.2, 0.6, 0.8]), result([1.0, 3.0, 5.0], [0.3, 0.7, 0.9], late=2)
    page = section_of([Series("digits", "sync", "active", (slow,)), Series("digits", "async", "active", (fast,))])
    assert [f"to {goal} %" in page for goal in ("64.00", "72.00", "80.00")] == [True] * 3
    cells = [row.replace("</td>", "").split("<td>")[1:] for row in page.split("<tr>")[2:]]
    assert [cell.split("<")[0] for cell in cells[0]] == ["3", "0.00", "9.0", "9.0", "9.0", "9.0"]
    assert [cell.split("<")[0] for cell in cells[1]] == ["3", "2.00", "3.0", "5.0", "5.0", "5.0"]
    assert lateness(fast) == 2.0
