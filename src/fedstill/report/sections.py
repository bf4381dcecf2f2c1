"""The page's tables as HTML, there without JavaScript too: summary, what left a client, runs, pictures."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from statistics import fmean
from typing import Any

from fedstill.experiment.health import KINDS as HEALTH
from fedstill.experiment.metrics import Shown
from fedstill.experiment.result import Result
from fedstill.report import tables
from fedstill.report import verdict as verdicts
from fedstill.report.digest import Series, chapters
from fedstill.report.figures import plots
from fedstill.report.terminal import size

ILL = 5
"""So many rounds of a run, at most, are told of one by one."""
CHAPTERS = 4
"""Of so many chapters, at most, the page's opening speaks."""


def section(name: str, title: str, *content: str, about: str = "") -> str:
    """A section of the page; `about` is HTML."""
    words = f'<p class="about">{about}</p>' if about else ""
    return f'<section id="{name}"><h2>{escape(title)}</h2>{words}{"".join(content)}</section>'


def table(head: Iterable[str], body: Iterable[str], left: Sequence[int] = (), kind: str = "") -> str:
    """A table that scrolls on its own where it is wide; heads are HTML, `left` the columns set to the left."""
    cells = (f'<th scope="col"{" class=left" if n in left else ""}>{text}</th>' for n, text in enumerate(head))
    return framed(f"<tr>{''.join(cells)}</tr>", body, kind)


def each_chapter(series: Sequence[Series], made: Callable[[Sequence[Series]], str]) -> list[str]:
    """What is made of each chapter's lines, under its name where there are several; empty texts are left out."""
    by_chapter = chapters(series)
    texts = {chapter: made(lines) for chapter, lines in by_chapter.items()}
    return [(f"<h3>{escape(name)}</h3>" if len(by_chapter) > 1 else "") + text for name, text in texts.items() if text]


def framed(head: str, body: Iterable[str], kind: str = "") -> str:
    """A table from its rows."""
    mark = f' class="{kind}"' if kind else ""
    rows = "".join(body)
    return f'<div class="scroll"><table{mark}><thead>{head}</thead><tbody>{rows}</tbody></table></div>'


def cell(text: str, kind: str = "", **data: str) -> str:
    """A cell; `data` become data- attributes, the text is HTML."""
    marks = (f' class="{kind}"' if kind else "") + "".join(f' data-{k}="{escape(v)}"' for k, v in data.items())
    return f"<td{marks}>{text}</td>"


def set_back(text: str) -> str:
    """`mean ± spread` as HTML, the spread set back."""
    mean, sign, spread = text.partition(" ± ")
    return escape(mean) + (f' <span class="spread">± {escape(spread)}</span>' if sign else "")


def code(text: str, wrap: bool = False) -> str:
    """A block of code with a button that copies it."""
    kind = " class=wrap" if wrap else ""
    return f'<div class="code"><pre{kind}>{escape(text)}</pre><button class="copy" type="button">copy</button></div>'


def notes(lines: Sequence[str]) -> str:
    """What the reader should know, at the top of the page: twelve lines at most."""
    if not lines:
        return ""
    shown = [*lines[:12], *([f"and {len(lines) - 12} more"] if len(lines) > 12 else [])]
    return f'<div class="note" role="note"><ul>{"".join(f"<li>{escape(line)}</li>" for line in shown)}</ul></div>'


def verdict(series: Sequence[Series], story: str = "") -> str:
    """What the numbers say, in plain sentences, and what the kinds of models are; `story` is HTML that comes first."""
    out = [story]
    by_chapter = chapters(series)
    for chapter, inside in list(by_chapter.items())[:CHAPTERS]:
        rows = [tables.summary(line.runs, line.model, line.group) for line in inside]
        sentences = " ".join(verdicts.sentences(rows, tables.metrics_of(r for line in inside for r in line.runs)))
        where = f"<b>{escape(chapter)}</b>: " if len(by_chapter) > 1 else ""
        out.append(f"<p>{where}{escape(sentences)}</p>")
    kinds = verdicts.glossary([line.model for line in series])
    words = f'<p class="about">Kinds of models. {escape(kinds)}.</p>' if kinds else ""
    return f'<div class="verdict">{"".join(out)}{words}</div>'


def health(results: Sequence[Result]) -> str:
    """Whose replies were not used, and in which runs: a table with the sum and the rounds; empty when all were."""
    body = []
    for result in results:
        state = result.health
        if any(state.total[kind] for kind in HEALTH):
            counts = "".join(cell(str(state.total[kind])) for kind in HEALTH)
            lines = [line for entry in state.rounds if (line := entry.line())]
            more = [f"and {len(lines) - ILL} rounds more"] if len(lines) > ILL else []
            reasons = "".join(f"<br>{escape(line)}" for line in [*lines[:ILL], *more])
            used = f"{state.total['used']} of {state.total['asked']}"
            body.append(f"<tr>{cell(f'<code>{escape(result.place)}</code>{reasons}', 'name')}{cell(used)}{counts}</tr>")
    if not body:
        return ""
    meanings = "; ".join(f"{kind}: {words}" for kind, words in HEALTH.items())
    about = f"Replies that the server did not use. {escape(meanings)}."
    return section("health", "Health", table(["run", "replies used", *HEALTH], body), about=about)


def summary(series: Sequence[Series]) -> str:
    """A table for each chapter: methods and models down, metrics across."""
    metrics = tables.metrics_of(result for line in series for result in line.runs)
    units = [f"{escape(metric.title)} {metric.arrow}<br>{escape(metric.unit)}" for metric in metrics]
    head = ["method", *units, "best AMP<br>%", "rounds", "seeds", "sent"]

    def of_chapter(inside: Sequence[Series]) -> str:
        chapter = inside[0].chapter
        rows = [{**tables.summary(line.runs, line.model, line.title), "data": chapter} for line in inside]
        return table(head, (_summary_row(rows, row, chapter, metrics) for row in rows))

    about = (
        'Last round, mean ± standard deviation over seeds. <b>Best</b> is bold, <span class="second">second</span> '
        "underlined. "
    ) + "; ".join(f"{escape(metric.title)}: {escape(metric.about)}" for metric in metrics)
    return section("summary", "Summary", *each_chapter(series, of_chapter), about=about)


def _summary_row(
    rows: Sequence[Mapping[str, Any]], row: Mapping[str, Any], chapter: str, metrics: Sequence[Shown]
) -> str:
    marks = ("", "best", "second")
    cells = [cell(escape(row["method"]), "name")]
    for metric in metrics:
        shown = set_back(tables.cell(row.get(metric.key), metric))
        cells.append(cell(shown, marks[tables.place(rows, row, metric)], metric=metric.key))
    cells.append(cell(set_back(tables.cell(row["best_amp"], metrics[0])), metric="best_amp"))
    cells += [cell(str(row["rounds"])), cell(str(len(row["seeds"])))]
    cells.append(cell(f"{size(row['bytes']['up'])} ↑<br>{size(row['bytes']['down'])} ↓", metric="bytes"))
    return f'<tr data-label="{escape(row["method"])}" data-chapter="{escape(chapter)}">{"".join(cells)}</tr>'


def gallery(figures: Sequence[tuple[str, Any]], title: str = "Pictures", wide: bool = False) -> str:
    """A section with figures, each an image of its own inside the page.

    Side by side, or (`wide`) one under the other, at a width at which small names can be read; a phone scrolls them.
    """
    shown = ""
    for caption, figure in figures:
        size = "picture wide" if wide else "picture"
        image = f'<img class="{size}" alt="{escape(caption)}" src="{plots.inline(figure)}">'
        framed = f'<div class="scroll">{image}</div>' if wide else image
        shown += f"<figure><figcaption>{escape(caption)}</figcaption>{framed}</figure>"
    if not shown:
        return ""
    return section("pictures", title, shown if wide else f'<div class="grid">{shown}</div>')


def leaves(data: Mapping[str, Any]) -> str:
    """What left each client and what came down, field by field: as declared, and as the runs' ledger counted it."""
    rows: dict[tuple[Any, ...], str] = {}
    for group in data["groups"]:
        runs = [data["runs"][i] for i in group["runs"]]
        chapter = data["chapters"][group["chapter"]] if len(data["chapters"]) > 1 else ""
        for way, turns, words in (("up", "answers", "left a client"), ("down", "turns", "came down")):
            for name in dict.fromkeys(n for run in runs for n in run["fields"][way]):
                total = fmean(run["fields"][way].get(name, 0) for run in runs)
                each = fmean(run["fields"][way].get(name, 0) / max(1, run[turns]) for run in runs)
                carries = group["leaves"].get(name, "not declared") if way == "up" else ""
                where = f' <span class="spread">{escape(chapter)}</span>' if chapter else ""
                texts = [words, f"<code>{escape(name)}</code>", escape(carries)]
                cells = cell(escape(group["method"]) + where, "name") + "".join(cell(text, "left") for text in texts)
                cells += cell(size(each)) + cell(size(total))
                row = f'<tr data-way="{way}" data-field="{escape(name)}">{cells}</tr>'
                rows.setdefault((group["method"], chapter, way, name, carries, round(each)), row)
    head = ["method", "direction", "field", "carries", "bytes a client and round", "in a whole run"]
    about = (
        "Field by field, as the method declares it and as the runs' ledger counted it. Whatever is not listed stayed "
        "where it was."
    )
    return section("leaves", "What left each client", table(head, rows.values(), left=(1, 2, 3)), about=about)


def runs(data: Mapping[str, Any], command: str) -> str:
    """Every run: its configuration, versions, and the command that makes it again."""
    out = [_group(data, group) for group in data["groups"]]
    many = len(data["versions"]) > 1
    for number, versions in enumerate(data["versions"], start=1):
        words = ", ".join(f"{name} {value}" for name, value in versions.items())
        out.append(f"<h3>Versions{f' ({number})' if many else ''}</h3><pre class=wrap>{escape(words)}</pre>")
    if command:
        out.append(f"<h3>This page</h3>{code(command, wrap=True)}")
    return section("runs", "Runs, configuration, versions", *out)


def _group(data: Mapping[str, Any], group: Mapping[str, Any]) -> str:
    members = [data["runs"][i] for i in group["runs"]]
    chapter = f"{data['chapters'][group['chapter']]}, " if len(data["chapters"]) > 1 else ""
    seeds = ", ".join(str(run["seed"]) for run in members)
    rows = (
        "<tr>"
        + cell(f"<code>{escape(run['name'])}</code>", "name")
        + cell(str(run["seed"]))
        + cell(f"{run['done']} of {run['planned']}")
        + cell(str(run["missing"]))
        + cell(f"{sum(run['seconds'].values()):.1f} s")
        + "</tr>"
        for run in members
    )
    return (
        f"<details><summary>{escape(group['label'])} <span>{escape(chapter)}seed {seeds}</span></summary>"
        + table(["folder", "seed", "rounds", "turns without answer", "time"], rows)
        + "<h3>Make it again</h3>"
        + code("\n".join(run["again"] for run in members), wrap=True)
        + f"<h3>Full configuration (seed {members[0]['seed']})</h3>"
        + code(members[0]["config"])
        + "</details>"
    )
