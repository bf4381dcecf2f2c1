"""What a run looks like in a terminal: readable on any screen, and nothing from outside is read as markup."""

import io
from typing import Any

import pytest
from rich.console import Console

from fedstill.experiment.config import experiment
from fedstill.experiment.metrics import Metric, metrics
from fedstill.experiment.result import Result
from fedstill.report import catalogue, tables
from fedstill.report.terminal import Live, show_result


def row(number: int, *models: str) -> dict[str, Any]:
    scores = {"amp": 0.5, "fm": 0.01, "wlp": 0.25, "accuracy": 0.5, "accuracy_per_client": [0.25, 0.75]}
    return {
        "round": number,
        "models": dict.fromkeys(models, scores),
        "bytes": {"down": {"weights": 10}, "up": {"weights": 123_456}},
        "seconds": {"clients": 1.25},
    }


def table(width: int, height: int, rounds: int, *models: str) -> list[str]:
    """The live table's lines on a screen of this size."""
    live = Live()
    live.console = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=width, height=height)
    live.rows = [row(number + 1, *models) for number in range(rounds)]
    live.console.print(live._table())
    shown = live.console.file
    assert isinstance(shown, io.StringIO)
    return shown.getvalue().splitlines()


def test_three_models_in_eighty_columns_stand_below_one_another() -> None:
    """No number and no head is cut: a line for each model of a round."""
    lines = table(80, 40, 3, "active", "overall", "personal")
    assert lines[0].split() == ["round", "model", "AMP", "↑", "FM", "↓", "WLP", "↑", "up", "seconds"]
    assert lines[1].split() == ["1", "active", "50.00", "10.00", "25.00", "123.5", "kB", "1.2"]
    assert lines[3].split() == ["personal", "50.00", "10.00", "25.00"]
    assert len(lines) == 1 + 3 * 3
    assert not any("…" in line for line in lines)


def test_models_stand_side_by_side_where_there_is_room() -> None:
    lines = table(160, 40, 3, "active", "overall", "personal")
    assert lines[2].split() == ["1", *["50.00", "10.00", "25.00"] * 3, "123.5", "kB", "1.2"]
    assert len(lines) == 2 + 3


@pytest.mark.parametrize(("height", "rounds"), [(24, 17), (60, 53)])
def test_a_tall_screen_shows_more_rounds(height: int, rounds: int) -> None:
    """Seven lines of the screen are for the table's head, the progress bar, and what stood before."""
    lines = table(100, height, 100, "active")
    assert len(lines) == 2 + rounds
    assert lines[-1].split()[0] == "100"


def test_names_from_outside_are_neither_markup_nor_commands_to_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site, run, class or data set may be called `[red]x` or hold an escape sequence: it is printed, not obeyed."""
    monkeypatch.setenv("COLUMNS", "160")
    bad = "[red]x[/] \x1b[2J"
    live = Live()
    live.console = Console(file=io.StringIO(), force_terminal=True, width=100)
    live.note(f"site {bad} was missing")
    shown = live.console.file
    assert isinstance(shown, io.StringIO)
    assert "note: site [red]x[/] �[2J was missing" in shown.getvalue()
    plan = {**experiment({"method": "fedavg"}).plain(), "data": bad}
    result = Result(plan, [row(1, "[bold]active")])
    tables.show(tables.comparison([result]))
    show_result(result)
    out = capsys.readouterr().out
    assert "[red]x[/] �[2J" in out
    assert out.count("[bold]active") == 2
    assert "\x1b" not in out


def test_listings_print_brackets_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    catalogue.show_listing([{"name": "[b]", "about": "a share in [0, 1]"}])
    catalogue.show_card({"name": "[b]", "about": "a share in [0, 1]", "settings": [
        {"name": "p", "default": "[x]", "about": "in [0, 1]"},
    ]})  # fmt: skip
    out = capsys.readouterr().out
    assert out.count("[b]") == 2
    assert out.count("[0, 1]") == 3
    assert "[x]" in out


@pytest.mark.parametrize("width", [120, 70, 40])
def test_a_run_s_end_is_whole_on_any_screen(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heads are broken between words only; where not even that fits, metrics stand below one another."""
    monkeypatch.setenv("COLUMNS", str(width))
    show_result(Result(experiment({"method": "fedavg"}).plain(), [row(1, "active", "overall")]))
    lines = capsys.readouterr().out.splitlines()
    words = " ".join(lines).split()
    assert all(len(line) <= width for line in lines[:-1])
    assert [word for word in ("overall", "global", "client", "round", "50.00") if word not in words] == []
    on_its_side = next(line.split() for line in lines if line.startswith("model")) == ["model", "active", "overall"]
    assert on_its_side == (width < 70)


def test_a_metric_that_was_asked_for_is_watched_while_a_run_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(metrics._entries, "best", Metric("best", "BEST"))
    live = Live(quiet=True)
    live.started(experiment({"method": "fedavg", "metrics": ["best"]}), None, None, 0)  # type: ignore[arg-type]
    assert [metric.title for metric in live.metrics] == ["AMP", "FM", "WLP", "BEST"]
