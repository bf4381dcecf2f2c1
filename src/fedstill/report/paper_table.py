"""Our numbers beside a paper's: in the terminal, and as the first section of the page."""

import itertools
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from rich.markup import escape as _plain
from rich.table import Table

from fedstill.experiment import centralised
from fedstill.experiment.config import experiment, identity
from fedstill.experiment.gallery import held
from fedstill.experiment.presets import Preset
from fedstill.experiment.reproduce import Entry, Number
from fedstill.experiment.result import Result
from fedstill.experiment.table_metrics import described, which
from fedstill.report import html, sections
from fedstill.report.digest import Series
from fedstill.report.figures import plots
from fedstill.report.figures.partition import partition_figure, save
from fedstill.report.logging import flat
from fedstill.report.terminal import stdout

Differences = Mapping[tuple[str, str], Sequence[str]]
"""Of every cell (row, column) the settings in which our runs differ from the paper's own."""


def differences(preset: Preset, entries: Sequence[Entry]) -> Differences:
    """What was set otherwise than in the paper: by the preset's smaller size, by --rounds or by --set."""
    papers = {(cell.row, cell.column): cell.settings for cell in preset.cells(full=True)}
    differ = {}
    for entry in entries:
        where = (entry.cell.row, entry.cell.column)
        if entry.plans:
            its = flat(identity(experiment(papers[where]).plain(), "seed", reporting=False))
            mine = flat(identity(entry.plans[0].plain(), "seed", reporting=False))
            differ[where] = [
                f"{name.removeprefix('method.')}={_short(mine.get(name))} instead of {_short(its.get(name))}"
                for name in dict.fromkeys([*its, *mine])
                if its.get(name) != mine.get(name)
            ]
    return differ


def _short(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= 30 else text[:29] + "…"


def ours(number: Number) -> str:
    """Ours, for the eye: `–` where there is none; where a target was not reached, the bound it is beyond.

    That is `> 100` in a column of rounds, `> 405.2` in one of seconds, `< 0.8` in one of speed-ups.
    """
    if number.mean is not None:
        return described(number.metric).text(number.mean, number.spread)
    if number.beyond is None:
        return "–"
    if not number.known:
        metric = described(number.metric)
        bound = metric.text(number.beyond)
        return f"{'>' if metric.direction < 0 else '<'} {bound.rstrip('0').rstrip('.') if '.' in bound else bound}"
    reached = described(number.metric).text(sum(number.known) / len(number.known))
    return f"{reached} ({len(number.known)} of {len(number.ours)} seeds)"


def theirs(number: Number) -> str:
    """The paper's, for the eye."""
    if number.paper is None:
        return "–"
    if number.paper_mean is None:
        return str(number.paper)
    return described(number.metric).text(number.paper_mean, number.paper[1] if isinstance(number.paper, list) else 0.0)


def gap(number: Number) -> str:
    """Ours less the paper's, with its sign."""
    if number.difference is None:
        return "–"
    metric = described(number.metric)
    return f"{metric.factor * number.difference:+.{metric.digits}f}"


def show(numbers: Sequence[Number], title: str, differ: Differences | None = None) -> None:
    """A table for each of the paper's columns: ours, the paper's, the difference; metrics side by side if they fit.

    `differ` names, beside a row's numbers, what was set otherwise than in the paper.
    """
    console = stdout(highlight=False)
    console.print(f"[bold]{_plain(title)}[/bold]")
    for column in dict.fromkeys(n.column for n in numbers):
        inside = [n for n in numbers if n.column == column]
        metrics = list(dict.fromkeys(n.metric for n in inside))
        wide = console.width >= 24 + 36 * len(metrics)
        table = Table(title=_plain(column), title_justify="left", title_style="italic", box=None, pad_edge=False)
        for name in ("", *(() if wide else ("metric",))):
            table.add_column(name, overflow="fold")
        for metric in metrics if wide else [""]:
            head = f"{described(metric).heading}\n" if metric else ""
            for name in ("ours", "paper", "Δ"):
                table.add_column(head * (name == "ours") + "\n" * bool(head and name != "ours") + name, justify="right")
        for row in dict.fromkeys(n.row for n in inside):
            cells = {n.metric: n for n in inside if n.row == row}
            states = dict.fromkeys(n.state for n in cells.values() if n.state)
            remarks = [*states, *(differ or {}).get((row, column), ())]
            label = _plain(row) + "".join(f"\n[dim]({_plain(remark)})[/dim]" for remark in remarks)
            if wide:
                table.add_row(label, *(text for metric in metrics for text in _triple(cells.get(metric))))
            else:
                for place, (metric, number) in enumerate(cells.items()):
                    table.add_row("" if place else label, described(metric).heading, *_triple(number))
        console.print(table)
        console.print()


def _triple(number: Number | None) -> tuple[str, str, str]:
    return ("", "", "") if number is None else (ours(number), theirs(number), gap(number))


def section(numbers: Sequence[Number], note: str, source: str, differ: Differences | None = None) -> str:
    """The same as the page's first section; a difference is coloured only where the setting is the paper's."""
    out = []
    for column in dict.fromkeys(n.column for n in numbers):
        inside = [n for n in numbers if n.column == column]
        metrics = list(dict.fromkeys(n.metric for n in inside))
        over = "".join(f'<th scope="col" colspan="3">{escape(described(metric).heading)}</th>' for metric in metrics)
        under = "".join(f'<th scope="col">{name}</th>' for name in ("ours", "paper", "Δ")) * len(metrics)
        head = f'<tr><th></th>{over}</tr><tr><th scope="col">method</th>{under}</tr>'
        rows = dict.fromkeys(n.row for n in inside)
        body = []
        for row in rows:
            cells = {n.metric: n for n in inside if n.row == row}
            body.append(_row(row, cells, metrics, (differ or {}).get((row, column), ())))
        out.append(f"<h3>{escape(column)}</h3>" + sections.framed(head, body))
    about = f"{escape(note)} Δ is ours less the paper's; green where ours is better. "
    if any((differ or {}).values()):
        about += (
            "Where runs were set otherwise than the paper's, that stands beside them, and Δ says little: no colour."
        )
    return sections.section("lead", f"Beside the paper: {source}", *out, about=about)


def _row(row: str, cells: Mapping[str, Number], metrics: Sequence[str], differ: Sequence[str]) -> str:
    remarks = [*dict.fromkeys(n.state for n in cells.values() if n.state), *differ]
    pills = "".join(f'<br><span class="pill">{escape(remark)}</span>' for remark in remarks)
    out = [sections.cell(escape(row) + pills, "name")]
    for metric in metrics:
        number = cells.get(metric)
        if number is None:
            out.append(sections.cell("") * 3)
            continue
        tone = (
            ""
            if differ or not number.difference
            else "up"
            if number.difference * described(metric).direction > 0
            else "down"
        )
        out.append(sections.cell(sections.set_back(ours(number)), metric=metric))
        out += [sections.cell(sections.set_back(theirs(number))), sections.cell(escape(gap(number)), tone)]
    return f'<tr data-row="{escape(row)}">{"".join(out)}</tr>'


def page(
    preset: Preset,
    entries: Sequence[Entry],
    done: Mapping[Path, Result],
    numbers: Sequence[Number],
    failed: Mapping[Path, str],
    room: Path,
    command: str,
    claims: str = "",
) -> Path | None:
    """Write the table's page, with the section on `claims`; None where there is nothing to show."""
    lines = series(entries, done)
    notes = [f"{e.cell.row} × {e.cell.column}: {e.why_not}" for e in entries if e.why_not]
    notes += [f"{path}: {reason}" for path, reason in failed.items()]
    differ = differences(preset, entries)
    source = f"{preset.content.get('paper', '')} {preset.content.get('source', '')}".strip()
    lead = (section(numbers, preset.note, source, differ) if numbers else "") + claims
    if lines:
        text = html.page(lines, title=preset.title, notes=notes, command=command, lead=lead)
    elif any(number.known for number in numbers):  # counted, not run: there are no curves
        parts = {"title": escape(preset.title), "notes": sections.notes(notes), "lead": lead}
        text = html.fill({**parts, "js": html.asset("shell.js")}, {"lead": "Beside the paper"})
    else:
        return None
    html.write(text, room / "report.html")
    return room / "report.html"


def partitions(preset: Preset, entries: Sequence[Entry], room: Path) -> Path:
    """Draw who holds what for every cell, without a run; returns the page."""
    figures = []
    for entry in entries:
        for plan in entry.plans[:1]:
            figures.append((entry.cell.column, partition_figure(*held(plan))))
    return _album(preset, figures, room)


def mean_images(preset: Preset, entries: Sequence[Entry], room: Path) -> Path:
    """Draw the mean image of every class, real and imagined; returns the page."""
    figures = []
    for entry in entries:
        for plan, job in list(zip(entry.plans, entry.jobs, strict=True))[:1]:
            real, imagined, ready = centralised.mean_images(plan, job.path)
            for title, images in (("real", real), ("generated", imagined)):
                figure = plots.images_figure(images.numpy(), ready.class_names)
                figures.append((f"{entry.cell.column}: mean image of each class, {title}", figure))
    return _album(preset, figures, room)


def _album(preset: Preset, figures: Sequence[tuple[str, Any]], room: Path) -> Path:
    """A page of pictures, and each as a file."""
    for title, figure in figures:
        save(figure, room / f"{re.sub(r'[^0-9A-Za-z.]+', '-', title).strip('-')}.svg")
    parts = {"title": escape(preset.title), "subtitle": escape(preset.note), "pictures": sections.gallery(figures)}
    html.write(html.fill({**parts, "js": html.asset("shell.js")}, {"pictures": "Pictures"}), room / "report.html")
    return room / "report.html"


def series(entries: Sequence[Entry], done: Mapping[Path, Result]) -> list[Series]:
    """The runs as the table has them: a chapter for each column, a line for each row, under the paper's names."""
    lines = []
    for entry in entries:
        runs = tuple(done[job.path] for job in entry.jobs if job.path in done)
        if not runs or entry.cell.model == "student":  # what has no run has no curves
            continue
        kin = [e.cell.row for e in entries if e.cell.column == entry.cell.column and e.jobs == entry.jobs]
        model = _model(runs[0], entry.cell.model)
        if model:
            lines.append(Series(entry.cell.column, _common(kin), model, runs, entry.cell.row))
    return lines


def _model(result: Result, asked: str) -> str:
    name = which(result, "active" if asked in ("teacher", "student") else asked)[0]
    return name if name in result.models else next(iter(result.models), "")


def _common(labels: Sequence[str]) -> str:
    """What the labels of rows that share their runs have in common: FedKF of FedKF (ACA) and FedKF (OCA)."""
    same = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*labels, strict=False))
    return "".join(letters[0] for letters in same).rstrip(" (,·") or labels[0]
