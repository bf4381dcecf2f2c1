"""The report: one page that holds its data, opens offline and asks the network for nothing.

Tables are written here, so that they are there without JavaScript; curves are drawn by the page from the same numbers.
"""

import json
import shlex
import time
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from pathlib import Path
from statistics import fmean
from typing import Any

import fedstill
from fedstill.core.errors import UsageError
from fedstill.core.record import write as write_file
from fedstill.experiment.result import Result
from fedstill.report import plots, tables
from fedstill.report.digest import Series, digest, series_of
from fedstill.report.terminal import size

PICTURES = 16
"""So many pictures at most: each costs time and space."""


def report(paths: Sequence[Path], out: Path, title: str | None = None) -> list[str]:
    """Write the page of the runs at or under these folders; returns what the reader should know."""
    results, notes = tables.survey(paths)
    if not results:
        raise UsageError("nothing to show: " + ("; ".join(notes) or "no folder given"))
    command = shlex.join(["fedstill", "report", *map(str, paths), "-o", str(out)])
    write(page(series_of(results), title=title or "Comparison of runs", notes=notes, command=command), out)
    return notes


def write(text: str, out: Path) -> None:
    """Write a page, all of it or nothing."""
    if out.is_dir():
        raise UsageError(f"{out}: is a folder; name a file, like report.html")
    try:
        write_file(out, text.encode())
    except OSError as error:
        raise UsageError(f"{out}: cannot write ({error.strerror or error})") from None


def page(series: Sequence[Series], *, title: str, notes: Sequence[str] = (), command: str = "", lead: str = "") -> str:
    """The page of these series; `lead` is HTML that comes first, `command` makes the page again."""
    data = digest(series)
    notes = [*notes, *_words(series)]
    results = list({id(r): r for line in series for r in line.runs}.values())
    pictures = gallery(_pictures(series))
    parts = {
        "title": escape(title),
        "subtitle": escape(_subtitle(results)),
        "notes": _notes(notes),
        "lead": lead,
        "summary": _summary(series),
        "charts": asset("charts.html"),
        "pictures": pictures,
        "leaves": _leaves(data),
        "runs": _runs(data, command),
        "data": json.dumps(data, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c"),
        "js": asset("charts.js") + asset("page.js") + asset("shell.js"),
    }
    trusted = any("trust" in run for run in data["runs"])
    links = {
        **({"lead": "Beside the paper"} if lead else {}), "summary": "Summary", "curves": "Curves", "clients": "Clients", "speed": "Rounds",
        "traffic": "Bytes", "time": "Time", "partition": "Partition", **({"trust": "Trust"} if trusted else {}),
        **({"pictures": "Pictures"} if pictures else {}), "leaves": "What leaves", "runs": "Runs",
    }  # fmt: skip
    return fill(parts, links)


def fill(parts: Mapping[str, str], links: Mapping[str, str]) -> str:
    """The page's frame, filled; parts that are not given stay empty."""
    empty = dict.fromkeys(("subtitle", "notes", "lead", "summary", "charts", "pictures", "leaves", "runs", "data", "js"), "")
    known = {
        **empty, "css": asset("page.css"), "version": fedstill.__version__, "date": time.strftime("%Y-%m-%d %H:%M"),
        "nav": "".join(f'<a href="#{target}">{escape(name)}</a>' for target, name in links.items()), **parts,
    }  # fmt: skip
    pieces = asset("page.html").split("{{")
    return pieces[0] + "".join(known[name] + rest for name, _, rest in (piece.partition("}}") for piece in pieces[1:]))


def asset(name: str) -> str:
    """A file of the page."""
    return (resources.files(__package__) / "page" / name).read_text(encoding="utf-8")


def _subtitle(results: Sequence[Result]) -> str:
    data = list(dict.fromkeys(str(r.experiment["data"]) for r in results))
    seeds = sorted({r.experiment["seed"] for r in results})
    rounds = sorted({len(r.rows) for r in results})
    clients = sorted({r.experiment["clients"] for r in results})

    def span(values: Sequence[int]) -> str:
        return str(values[0]) if len(values) == 1 else f"{values[0]}–{values[-1]}"

    names = ", ".join(data[:4]) + (f" and {len(data) - 4} more" if len(data) > 4 else "")
    return (
        f"{len(results)} run{'s' * (len(results) != 1)} on {names} · {span(clients)} clients · {span(rounds)} rounds · "
        f"{len(seeds)} seed{'s' * (len(seeds) != 1)}"
    )


def _words(series: Sequence[Series]) -> list[str]:
    """What makes a comparison doubtful, in words."""
    found = []
    data = list(dict.fromkeys(str(line.runs[0].experiment["data"]) for line in series))
    if len(data) > 1 and len({line.chapter for line in series}) == len(data):
        found.append(f"Runs on different data sets ({', '.join(data)}): compared within each, never across.")
    for chapter in dict.fromkeys(line.chapter for line in series):
        inside = [line for line in series if line.chapter == chapter]
        if len({tuple(sorted(r.experiment["seed"] for r in line.runs)) for line in inside}) > 1:
            where = f"{chapter}: " if len(data) > 1 else ""
            found.append(f"{where}not every method ran with the same seeds; a difference may be the seed's.")
    return found


def _notes(notes: Sequence[str]) -> str:
    if not notes:
        return ""
    shown = [f"<li>{escape(note)}</li>" for note in notes[:12]]
    more = f"<li>and {len(notes) - 12} more</li>" if len(notes) > 12 else ""
    return f'<div class="note" role="note"><ul>{"".join(shown)}{more}</ul></div>'


def mean_spread(value: Mapping[str, float] | None, metric: str) -> str:
    """Mean ± spread as HTML, the spread set back."""
    mean, pm, spread = tables.cell(value, metric).partition(" ± ")
    return escape(mean) + (f' <span class="spread">± {escape(spread)}</span>' if pm else "")


def _summary(series: Sequence[Series]) -> str:
    """A table for each chapter: methods and models down, metrics across."""
    out = []
    chapters = list(dict.fromkeys(line.chapter for line in series))
    for number, chapter in enumerate(chapters):
        inside = [line for line in series if line.chapter == chapter]
        rows = [{**tables.summary(line.runs, line.model, line.title), "data": chapter} for line in inside]
        head = "".join(
            f'<th scope="col">{escape(name)}<br>{"10⁻³" if metric == "fm" else "%"}</th>' for metric, name in tables.METRICS.items()
        )
        body = []
        for line, row in zip(inside, rows, strict=True):
            cells = "".join(
                f'<td data-metric="{metric}" class="{["", "best", "second"][tables.place(rows, row, metric)]}">{mean_spread(row[metric], metric)}</td>'
                for metric in tables.METRICS
            )
            body.append(
                f'<tr data-label="{escape(line.title)}" data-chapter="{number}"><td class="name">{escape(line.title)}</td>{cells}'
                f'<td data-metric="best_amp">{mean_spread(row["best_amp"], "amp")}</td><td>{row["rounds"]}</td><td>{len(row["seeds"])}</td>'
                f'<td>{escape(size(row["bytes"]["up"]))} ↑<br>{escape(size(row["bytes"]["down"]))} ↓</td></tr>'
            )
        name = f"<h3>{escape(chapter)}</h3>" if len(chapters) > 1 else ""
        out.append(
            f'{name}<div class="scroll"><table><thead><tr><th scope="col">method</th>{head}<th scope="col">best AMP<br>%</th>'
            f'<th scope="col">rounds</th><th scope="col">seeds</th><th scope="col">sent</th></tr></thead><tbody>{"".join(body)}</tbody></table></div>'
        )
    return (
        '<section id="summary"><h2>Summary</h2><p class="about">Last round, mean ± standard deviation over seeds. <b>Best</b> is bold, '
        '<span class="second">second</span> underlined. AMP: accuracy averaged over the clients\' own tests; FM: its variance between '
        "clients; WLP: that of the client served worst; global test: accuracy on the data set's own test part.</p>"
        f"{''.join(out)}</section>"
    )


def _pictures(series: Sequence[Series]) -> list[tuple[str, Any]]:
    """What a run has to show beyond numbers, from the first seed of each experiment; the partition is drawn by the page."""
    seen: dict[int, tuple[str, Result]] = {id(line.runs[0]): (line.group, line.runs[0]) for line in series}
    found = []
    for group, result in seen.values():
        if len(found) < PICTURES:
            here = f"{group}, seed {result.experiment['seed']}"
            found += [(f"{here}: {title}", figure) for title, figure in plots.pictures(result, without=("partition",))]
    return found[:PICTURES]


def gallery(figures: Sequence[tuple[str, Any]]) -> str:
    """A section with figures, each an image of its own inside the page."""
    if not figures:
        return ""
    shown = "".join(
        f'<figure><figcaption>{escape(title)}</figcaption><img class="picture" alt="{escape(title)}" src="{plots.inline(figure)}"></figure>'
        for title, figure in figures
    )
    return f'<section id="pictures"><h2>Pictures</h2><div class="grid">{shown}</div></section>'


def _leaves(data: Mapping[str, Any]) -> str:
    """What left each client and what came down, field by field, from the ledger of the runs."""
    rows, seen = [], set()
    for group in data["groups"]:
        runs = [data["runs"][i] for i in group["runs"]]
        carried = data["leaves"].get(group["method"], {})
        per = {
            (way, name): fmean(r["fields"][way].get(name, 0) / max(1, r["answers" if way == "up" else "turns"]) for r in runs)
            for way in ("up", "down")
            for name in dict.fromkeys(n for r in runs for n in r["fields"][way])
        }
        key = (group["method"], tuple((k, round(v)) for k, v in per.items()))
        if key in seen:
            continue
        seen.add(key)
        chapter = data["chapters"][group["chapter"]] if len(data["chapters"]) > 1 else ""
        where = f' <span class="spread">{escape(chapter)}</span>' if chapter else ""
        for (way, name), count in per.items():
            what = carried.get(name, "not declared") if way == "up" else ""
            total = fmean(r["fields"][way].get(name, 0) for r in runs)
            rows.append(
                f'<tr data-way="{way}" data-field="{escape(name)}"><td class="name">{escape(group["method"])}{where}</td>'
                f'<td class="left">{"left a client" if way == "up" else "came down"}</td><td class="left"><code>{escape(name)}</code></td>'
                f'<td class="left">{escape(what)}</td><td>{escape(size(count))}</td><td>{escape(size(total))}</td></tr>'
            )
    return (
        '<section id="leaves"><h2>What left each client</h2><p class="about">Field by field, as the method declares it and as the runs\' '
        'ledger counted it. Whatever is not listed stayed where it was.</p><div class="scroll"><table><thead><tr><th scope="col">method</th>'
        '<th scope="col" class="left">direction</th><th scope="col" class="left">field</th><th scope="col" class="left">carries</th>'
        '<th scope="col">bytes a client and round</th><th scope="col">in a whole run</th></tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div></section>"
    )


def code(text: str, wrap: bool = False) -> str:
    """A block of code with a button that copies it."""
    return f'<div class="code"><pre{" class=wrap" if wrap else ""}>{escape(text)}</pre><button class="copy" type="button">copy</button></div>'


def _runs(data: Mapping[str, Any], command: str) -> str:
    """Every run: its configuration, versions, and the command that makes it again."""
    out = []
    for group in data["groups"]:
        runs = [data["runs"][i] for i in group["runs"]]
        chapter = data["chapters"][group["chapter"]] if len(data["chapters"]) > 1 else ""
        seeds = ", ".join(str(r["seed"]) for r in runs)
        commands = "\n".join(r["again"] for r in runs)
        rows = "".join(
            f'<tr><td class="name"><code>{escape(r["name"])}</code></td><td>{r["seed"]}</td><td>{r["done"]} of {r["planned"]}</td>'
            f"<td>{r['missing']}</td><td>{sum(r['seconds'].values()):.1f} s</td></tr>"
            for r in runs
        )
        out.append(
            f"<details><summary>{escape(group['label'])} <span>{escape(chapter)} seed {seeds}</span></summary>"
            f'<div class="scroll"><table><thead><tr><th scope="col">folder</th><th scope="col">seed</th><th scope="col">rounds</th>'
            f'<th scope="col">turns without answer</th><th scope="col">time</th></tr></thead><tbody>{rows}</tbody></table></div>'
            f"<h3>Make it again</h3>{code(commands, wrap=True)}<h3>Full configuration (seed {runs[0]['seed']})</h3>{code(runs[0]['config'])}</details>"
        )
    versions = "".join(
        f"<h3>Versions{f' ({n + 1})' if len(data['versions']) > 1 else ''}</h3><pre class=wrap>"
        + escape(", ".join(f"{name} {number}" for name, number in found.items()))
        + "</pre>"
        for n, found in enumerate(data["versions"])
    )
    again = f"<h3>This page</h3>{code(command, wrap=True)}" if command else ""
    return f'<section id="runs"><h2>Runs, configuration, versions</h2>{"".join(out)}{versions}{again}</section>'
