"""The leaderboard's page: one file, offline, sortable, with the command behind every number."""

import glob
import re
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from fedstill.experiment.leaderboard import RANKED, TIMES, YARDSTICK, League, Score, Standing, at_the_edge, fedavg_row
from fedstill.experiment.metrics import ALWAYS
from fedstill.experiment.presets import Preset
from fedstill.experiment.table_metrics import described
from fedstill.report import html, sections
from fedstill.report.command import command
from fedstill.report.ranks import ranks_figure

OTHER_SPLIT = "†"
"""Marks a method whose clients have another split than FedAvg's."""


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
        "subtitle": escape(" ".join(filter(None, (preset.note, tuning(preset))))),
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
    head = ["method", "model", "mean rank", "worst rank", *_other_ranks(), "bytes", "time"]
    for task in run:
        head += [f"{escape(titled(league, task))}<br>{escape(described(metric).heading)}" for metric in ALWAYS]
    body = [_row(preset, standing, run) for standing in league.standings]
    alike = "" if league.friedman is None else f" Friedman's test of all being alike: p = {league.friedman:.2g}."
    far = "" if league.critical is None else f" Mean ranks closer than {league.critical:.2f} do not differ (Nemenyi)."
    ranked = (
        f"Ranked by AMP over {len(league.tasks)} tasks that every method here has run: {'; '.join(league.tasks)}."
        f"{alike}{far} Ranks by FM and WLP are means over the same tasks."
    )
    about = (
        f"{'No federation, so not ranked.' if league.name == YARDSTICK else ranked} Bytes (both ways) and processor "
        "time of a round relative to FedAvg, geometric means over tasks. Click a head to sort."
    )
    board = sections.table(head, body, left=(1,), kind="board")
    below = "".join(f"<p>{_marked_up(line)}</p>" for line in footnotes(league, run))
    return sections.section(_id(league), league.name.capitalize(), board, below, about=escape(about))


def _other_ranks() -> list[str]:
    """Heads of the mean ranks by the metrics other than AMP."""
    return [f"rank by {described(metric).title}" for metric in RANKED[1:]]


def titled(league: League, task: str) -> str:
    """A task with how many seeds its numbers are means of: `digits (3 seeds)`, `(1–3 seeds)` where methods differ."""
    counts = sorted({len(s.scores[task].seeds) for s in league.standings if task in s.scores})
    return f"{task} ({'–'.join(map(str, dict.fromkeys((counts[0], counts[-1]))))} seed{'s' * (counts[-1] > 1)})"


def _name(standing: Standing) -> str:
    return standing.method + ("" if standing.same_split else f" {OTHER_SPLIT}")


def _marked_up(line: str) -> str:
    """A line of Markdown as HTML: what it sets as code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(line))


def footnotes(league: League, tasks: Sequence[str]) -> list[str]:
    """What to know of single methods of a league: another split than the others', other seeds on one of `tasks`."""
    lines = []
    publics = dict.fromkeys(str(s.public) for s in league.standings if not s.same_split)
    for public in publics:
        names = ", ".join(s.method for s in league.standings if not s.same_split and str(s.public) == public)
        why = "" if public == "None" else f" `public = {public}` of every class is no client's, so"
        lines.append(f"{OTHER_SPLIT} {names}:{why} clients train and are tested on other samples than FedAvg's.")
    for task in tasks:
        seeds = {s.method: s.scores[task].seeds for s in league.standings if task in s.scores}
        usual = Counter(seeds.values()).most_common(1)[0][0]
        others = [f"{method} has {_listed(own)}" for method, own in seeds.items() if own != usual]
        if others:
            lines.append(f"Seeds differ on {task}: most methods have {_listed(usual)}; {', '.join(others)}.")
    return lines


def _listed(seeds: Sequence[int]) -> str:
    return f"seed{'s' * (len(seeds) > 1)} {' '.join(map(str, seeds))}"


def tuning(preset: Preset) -> str:
    """How many methods took an edge of the rates that were tried; empty where the preset has no tuned rates."""
    edges, count = at_the_edge(preset)
    if not count:
        return ""
    tried = f"Of {', '.join(f'{times}×' for times in TIMES)} the documented rate, "
    if not edges:
        return f"{tried}none of {count} tuned methods took the first or the last."
    return f"{tried}{edges} of {count} tuned methods took the first or the last: one beyond may be better for them."


def again(preset: Preset, methods: Sequence[str], scores: Mapping[str, Score]) -> str:
    """The commands that make the numbers of `scores` (task → score) again, for these methods: one a number of seeds."""
    tasks_by_seeds: dict[int, list[str]] = {}
    for task, score in scores.items():
        tasks_by_seeds.setdefault(max(score.seeds) - preset.first_seed + 1, []).append(task)
    lines = []
    for seeds, tasks in tasks_by_seeds.items():
        words = ["fedstill", "reproduce", preset.name]
        for method in methods:
            words += ["--row", glob.escape(method)]
        for task in tasks:
            words += ["--column", glob.escape(task)]
        lines.append(shlex.join([*words, "--seeds", str(seeds)]))
    return "\n".join(lines)


def _row(preset: Preset, standing: Standing, tasks: Sequence[str]) -> str:
    ranked = {task: score for task, score in standing.scores.items() if task in standing.ranks}
    rank = f"{again(preset, [standing.method], ranked)}\nfedstill leaderboard {shlex.quote(preset.name)}"
    rank += "  # ranks it among the others, from the records"
    both = dict.fromkeys(filter(None, [fedavg_row(preset), standing.method]))
    price = again(preset, list(both), standing.scores)
    cells = [sections.cell(escape(_name(standing)), "name"), sections.cell(escape(standing.model), "left")]
    others = [(standing.mean_ranks.get(metric), ".2f", rank) for metric in RANKED[1:]]
    for value, form, command_ in (
        (standing.rank, ".2f", rank),
        (standing.worst, "g", rank),
        *others,
        (standing.bytes, ".2f", price),
        (standing.time, ".2f", price),
    ):
        cells.append(_number(value, "–" if value is None else f"{value:{form}}", "" if value is None else command_))
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
        task: {**score.metrics, "seeds": list(score.seeds), "records": [record.id for record in score.records]}
        for task, score in standing.scores.items()
    }
    return {
        "league": league.name,
        "method": standing.method,
        "model": standing.model,
        "same_split": standing.same_split,
        "mean_rank": standing.rank,
        "worst_rank": standing.worst,
        "mean_rank_by": dict(standing.mean_ranks),
        "bytes": standing.bytes,
        "time": standing.time,
        "ranked_by": list(league.tasks),
        "critical_difference": league.critical,
        "scores": scores,
    }


def markdown(preset: Preset, leagues: Sequence[League]) -> str:
    """The board as Markdown: how rates were tuned, then a table for each league, with its footnotes."""
    out = [tuning(preset)] if tuning(preset) else []
    for league in leagues:
        how = "not ranked" if league.name == YARDSTICK else f"ranked by AMP over {len(league.tasks)} tasks"
        out.append(f"**{league.name.capitalize()}**, {how}")
        if league.critical is not None:
            out[-1] += f"; mean ranks closer than {league.critical:.2f} do not differ (Nemenyi, 5 %)"
        tasks = [titled(league, task) for task in league.tasks]
        head = ["method", "model", "mean rank", "worst", *_other_ranks(), "bytes", "time", *tasks]
        lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
        lines += ["| " + " | ".join(_markdown_row(league, standing)) + " |" for standing in league.standings]
        out.append("\n".join(lines))
        out += footnotes(league, league.tasks)
    return "\n\n".join(out)


def _markdown_row(league: League, standing: Standing) -> list[str]:
    others = [(standing.mean_ranks.get(metric), ".2f") for metric in RANKED[1:]]
    placed = [(standing.rank, ".2f"), (standing.worst, "g"), *others]
    places = ["–" if value is None else f"{value:{form}}" for value, form in placed]
    relative = [f"{value:.2f}×" if value is not None else "–" for value in (standing.bytes, standing.time)]
    amps = []
    for task in league.tasks:
        score = standing.scores.get(task)
        amps.append(described("amp").text(score.metrics.get("amp") if score else None))
    return [_name(standing), standing.model, *places, *relative, *amps]
