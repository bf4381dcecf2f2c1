"""Our numbers beside a paper's: in the terminal, and as the first section of the page."""

import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fedstill.experiment.reproduce import Entry, Number
from fedstill.experiment.result import Result
from fedstill.report.digest import Series

NAMES = {
    "amp": "AMP", "fm": "FM", "wlp": "WLP", "accuracy": "accuracy", "personal": "client accuracy", "global_logits": "global logits",
    "client_logits": "client logits", "speedup": "speed-up", "slowdown": "times FedAvg's", "time_speedup": "speed-up", "seconds": "seconds",
}  # fmt: skip


def unit(metric: str) -> tuple[float, int, str]:
    """How a metric is shown: factor, digits, unit."""
    if metric == "fm":
        return 1000, 2, "10⁻³"
    if metric.startswith("rounds_to"):
        return 1, 1, "rounds"
    if metric.startswith("seconds"):
        return 1, 2, "s"
    if metric in ("speedup", "slowdown", "time_speedup"):
        return 1, 2, "×"
    return 100, 2, "%"


def heading(metric: str) -> str:
    """A metric's name and unit for the head of a column."""
    head, _, tail = metric.partition(":")
    if head == "rounds_to":
        goal = {"fedavg": "FedAvg's last AMP", "identified": "all identified"}.get(tail) or f"{100 * float(tail):g} %"
        return f"rounds to {goal}"
    if head == "seconds_to":
        return "seconds to FedAvg's last AMP"
    if head == "seconds" and tail:
        return f"{tail.replace('_', ' ')} (s)"
    return f"{NAMES.get(metric, metric)} ({unit(metric)[2]})"


def better(metric: str) -> int:
    """1 where more is better, -1 where less is."""
    return -1 if metric == "fm" or metric.startswith(("rounds_to", "seconds")) or metric == "slowdown" else 1


def _value(value: float, spread: float, metric: str) -> str:
    factor, digits, _ = unit(metric)
    text = f"{factor * value:.{digits}f}"
    return text + (f" ± {factor * spread:.{digits}f}" if spread else "")


def ours(number: Number) -> str:
    """Ours, for the eye: `–` where there is none, `> T` where a target was not reached."""
    if number.mean is not None:
        return _value(number.mean, number.spread, number.metric)
    if number.beyond is None:
        return "–"
    if not number.known:
        return f"> {number.beyond}"
    return f"{_value(sum(number.known) / len(number.known), 0, number.metric)} ({len(number.known)} of {len(number.ours)} seeds)"


def theirs(number: Number) -> str:
    """The paper's, for the eye."""
    if number.paper is None:
        return "–"
    if number.paper_mean is None:
        return str(number.paper)
    return _value(number.paper_mean, number.paper[1] if isinstance(number.paper, list) else 0.0, number.metric)


def gap(number: Number) -> str:
    """Ours less the paper's, with its sign."""
    if number.difference is None:
        return "–"
    factor, digits, _ = unit(number.metric)
    return f"{factor * number.difference:+.{digits}f}"


def show(numbers: Sequence[Number], title: str) -> None:
    """A table for each column of the paper's: ours, the paper's, the difference."""
    console = Console(file=sys.stdout, highlight=False)
    console.print(f"[bold]{title}[/bold]")
    for column in dict.fromkeys(n.column for n in numbers):
        inside = [n for n in numbers if n.column == column]
        metrics = list(dict.fromkeys(n.metric for n in inside))
        table = Table(title=column, title_justify="left", title_style="italic", box=None, pad_edge=False)
        table.add_column("", overflow="fold")
        for metric in metrics:
            for name in (f"{heading(metric)}\nours", "\npaper", "\nΔ"):
                table.add_column(name, justify="right")
        for row in dict.fromkeys(n.row for n in inside):
            cells = {n.metric: n for n in inside if n.row == row}
            state = next((n.state for n in cells.values() if n.state), "")
            shown = [text for metric in metrics for text in ((ours(n), theirs(n), gap(n)) if (n := cells.get(metric)) else ("", "", ""))]
            if state:
                shown = [f"[dim]{state}[/dim]" if i == 0 else t if i % 3 == 1 else "" for i, t in enumerate(shown)]
            table.add_row(row.replace("[", r"\["), *shown)
        console.print(table)
        console.print()


def section(numbers: Sequence[Number], note: str, source: str) -> str:
    """The same as the page's first section."""
    out = []
    for column in dict.fromkeys(n.column for n in numbers):
        inside = [n for n in numbers if n.column == column]
        metrics = list(dict.fromkeys(n.metric for n in inside))
        head = "".join(f'<th scope="col" colspan="3">{escape(heading(m))}</th>' for m in metrics)
        second = '<th scope="col">ours</th><th scope="col">paper</th><th scope="col">Δ</th>' * len(metrics)
        body = "".join(_row(row, [n for n in inside if n.row == row], metrics) for row in dict.fromkeys(n.row for n in inside))
        out.append(
            f'<h3>{escape(column)}</h3><div class="scroll"><table><thead><tr><th></th>{head}</tr><tr><th scope="col">method</th>{second}</tr>'
            f"</thead><tbody>{body}</tbody></table></div>"
        )
    about = f'<p class="about">{escape(note)} Δ is ours less the paper\'s; green where ours is better.</p>'
    return f'<section id="lead"><h2>Beside the paper: {escape(source)}</h2>{about}{"".join(out)}</section>'


def _row(row: str, numbers: Sequence[Number], metrics: Sequence[str]) -> str:
    cells = {n.metric: n for n in numbers}
    state = next((n.state for n in numbers if n.state), "")
    out = [f'<td class="name">{escape(row)}</td>']
    for place, metric in enumerate(metrics):
        number = cells.get(metric)
        if number is None:
            out.append("<td></td><td></td><td></td>")
        elif state:
            text = f'<span class="pill">{escape(state)}</span>' if place == 0 else ""
            out.append(f"<td>{text}</td><td>{_set_back(theirs(number))}</td><td></td>")
        else:
            tone = "" if not number.difference else "up" if number.difference * better(metric) > 0 else "down"
            out.append(f'<td data-metric="{escape(metric)}">{_set_back(ours(number))}</td><td>{_set_back(theirs(number))}</td><td class="{tone}">{escape(gap(number))}</td>')
    return f'<tr data-row="{escape(row)}">{"".join(out)}</tr>'


def _set_back(text: str) -> str:
    mean, sign, spread = text.partition(" ± ")
    return escape(mean) + (f' <span class="spread">± {escape(spread)}</span>' if sign else "")


def series(entries: Sequence[Entry], done: dict[Path, Result]) -> list[Series]:
    """The runs as the table has them: a chapter for each column, a line for each row, under the paper's names."""
    found = []
    for entry in entries:
        runs = tuple(done[job.path] for job in entry.jobs if job.path in done)
        if not runs:
            continue
        kin = [e.cell.row for e in entries if e.cell.column == entry.cell.column and e.jobs == entry.jobs]
        model = _model(runs[0], entry.cell.model)
        if model:
            found.append(Series(entry.cell.column, _common(kin), model, runs, entry.cell.row))
    return found


def _model(result: Result, asked: str) -> str:
    from fedstill.experiment.readings import which

    name = which(result, asked)[0]
    return name if name in result.models else next(iter(result.models), "")


def _common(labels: Sequence[str]) -> str:
    """What the labels of rows that share their runs have in common: FedKF of FedKF (ACA) and FedKF (OCA)."""
    import os

    return os.path.commonprefix(list(labels)).rstrip(" (,·") or labels[0]
