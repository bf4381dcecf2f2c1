"""The leaderboard's page: one file, offline, sortable, with the command behind every number."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from fedstill.experiment.leaderboard import League, Score, Standing
from fedstill.experiment.metrics import ALWAYS
from fedstill.experiment.presets import Preset
from fedstill.experiment.table_metrics import described
from fedstill.report import html, sections
from fedstill.report.command import command
from fedstill.report.ranks import ranks_figure


def page(preset: Preset, leagues: Sequence[League], out: Path) -> Path:
    """Write the page of the leagues; returns it."""
    parts = []
    figures = []
    for league in leagues:
        parts.append(_section(preset, league))
        if league.critical is not None:
            figures.append((f"{league.name}: mean ranks by AMP", ranks_figure(league)))
    shown = f'<div id="command">{sections.code("click a number", wrap=True)}</div>'
    lead = sections.section("command-behind", "The command behind a number", shown, about="Click a number in a table.")
    filled = {
        "title": escape(preset.title),
        "subtitle": escape(preset.note),
        "lead": lead + "".join(parts),
        "pictures": sections.gallery(figures, "Critical difference", wide=True),
        "js": html.asset("shell.js") + html.asset("board.js"),
    }
    links = {_id(league): league.name for league in leagues} | {"pictures": "Critical difference"}
    html.write(html.fill(filled, links), out)
    return out


def _id(league: League) -> str:
    return league.name.replace(" ", "-")


def _section(preset: Preset, league: League) -> str:
    tasks = [column["label"] for column in preset.content["columns"]]
    run = [task for task in tasks if any(task in s.scores for s in league.standings)]
    head = ["method", "mean rank", "worst rank", "bytes", "time"]
    head += [f"{escape(task)}<br>{escape(described(m).heading)}" for task in run for m in ALWAYS]
    body = [_row(preset, standing, run) for standing in league.standings]
    alike = "" if league.friedman is None else f" Friedman's test of all being alike: p = {league.friedman:.2g}."
    far = "" if league.critical is None else f" Mean ranks closer than {league.critical:.2f} do not differ (Nemenyi)."
    about = (
        f"Ranked by AMP over {len(league.tasks)} tasks that every method here has run: {'; '.join(league.tasks)}."
        f"{alike}{far} Bytes (both ways) and processor time of a round relative to FedAvg, geometric means over tasks. "
        "Click a head to sort."
    )
    board = sections.table(head, body, kind="board")
    return sections.section(_id(league), league.name.capitalize(), board, about=escape(about))


def _row(preset: Preset, standing: Standing, tasks: Sequence[str]) -> str:
    again = f"fedstill reproduce {preset.name} --row {standing.method} --seeds 3"
    cells = [sections.cell(escape(standing.method), "name")]
    for value, form in ((standing.rank, ".2f"), (standing.worst, "g"), (standing.bytes, ".2f"), (standing.time, ".2f")):
        cells.append(_number(value, "–" if value is None else f"{value:{form}}", again))
    for task in tasks:
        for metric in ALWAYS:
            cells.append(_score(standing.scores.get(task), metric))
    return f'<tr data-method="{escape(standing.method)}">{"".join(cells)}</tr>'


def _score(score: Score | None, metric: str) -> str:
    value = None if score is None else score.metrics.get(metric)
    if score is None or value is None:
        return _number(None, "–", "")
    again = "\n".join(f"{command(r.experiment)}  # {r.id}" for r in score.records)
    return _number(value, described(metric).text(value), again)


def _number(value: float | None, text: str, again: str) -> str:
    marks: dict[str, str] = {"value": "" if value is None else repr(value)}
    return sections.cell(escape(text), **marks, **({"command": again} if again else {}))


def rows(leagues: Sequence[League]) -> list[dict[str, Any]]:
    """The board as JSON."""
    return [_plain(league, standing) for league in leagues for standing in league.standings]


def _plain(league: League, standing: Standing) -> dict[str, Any]:
    scores = {
        task: {**score.metrics, "records": [record.id for record in score.records]}
        for task, score in standing.scores.items()
    }
    return {
        "league": league.name,
        "method": standing.method,
        "mean_rank": standing.rank,
        "worst_rank": standing.worst,
        "bytes": standing.bytes,
        "time": standing.time,
        "ranked_by": list(league.tasks),
        "critical_difference": league.critical,
        "scores": scores,
    }


def markdown(leagues: Sequence[League]) -> str:
    """The board as Markdown tables, a league each."""
    out = []
    for league in leagues:
        out.append(f"**{league.name.capitalize()}**, ranked by AMP over {len(league.tasks)} tasks")
        if league.critical is not None:
            out[-1] += f"; mean ranks closer than {league.critical:.2f} do not differ (Nemenyi, 5 %)"
        head = ["method", "mean rank", "worst", "bytes", "time", *league.tasks]
        lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
        for s in league.standings:
            relative = [f"{v:.2f}×" if v is not None else "–" for v in (s.bytes, s.time)]
            place = ["–" if v is None else f"{v:{form}}" for v, form in ((s.rank, ".2f"), (s.worst, "g"))]
            there = [s.scores[task].metrics.get("amp") if task in s.scores else None for task in league.tasks]
            amps = [described("amp").text(value) for value in there]
            lines.append("| " + " | ".join([s.method, *place, *relative, *amps]) + " |")
        out.append("\n".join(lines))
    return "\n\n".join(out)
