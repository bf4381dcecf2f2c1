"""Runs side by side: mean ± spread over seeds, last round and best round; the best bold, the second underlined."""

import csv
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rich.markup import escape
from rich.table import Table

from fedstill.core.errors import FedstillError, UsageError
from fedstill.experiment.annotate import tagged
from fedstill.experiment.config import experiment, identity
from fedstill.experiment.metrics import METRICS, Shown
from fedstill.experiment.result import Result
from fedstill.report.logging import flat
from fedstill.report.terminal import printable, stdout

WRONG = (FedstillError, ValueError, KeyError, TypeError, AttributeError, OSError)
"""What reading a folder that is not (yet) a whole run can raise."""


def find_runs(path: Path) -> Iterator[Path]:
    """The run folders at or under a path; what is inside a run is not looked into."""
    for folder, inner, files in os.walk(path):
        inner.sort()
        if "experiment.json" in files:
            inner.clear()
            yield Path(folder)


def survey(paths: Iterable[Path]) -> tuple[list[Result], list[str]]:
    """The runs at or under these folders that have something to show, and a line on everything that has not."""
    by_folder: dict[Path, Result] = {}
    notes: list[str] = []
    for path in paths:
        runs = list(find_runs(path))
        if not runs:
            notes.append(f"{path}: {'no run in there' if path.is_dir() else 'no such folder'}")
        for run in runs:
            try:
                result = Result.read(run)
                if result.models:
                    _ = (
                        [result.last(m)["amp"] for m in result.models],
                        result.experiment["method"]["name"],
                        result.bytes(),
                    )
                    by_folder[run.resolve()] = result
                else:
                    notes.append(f"{run}: no evaluated round yet; left out")
            except WRONG as error:
                notes.append(
                    f"{run}: cannot be read ({' '.join(str(error).split()) or type(error).__name__}); left out"
                )
    results = list(by_folder.values())
    counted = {id(r) for group in groups(results) for r in group}
    for r in results:
        if len(r.rows) < r.experiment.get("rounds", 0) and not r.stopped:
            out = "" if id(r) in counted else "; left out of the means, since other seeds are further"
            notes.append(f"{r.run_dir}: {len(r.rows)} of {r.experiment['rounds']} rounds so far{out}")
    return results, notes


def runs_found(paths: Iterable[Path], tags: Sequence[str] = ()) -> tuple[list[Result], list[str]]:
    """The runs at or under these folders with these tags, and notes as of `survey`; an error when there is none."""
    results, notes = survey(paths)
    chosen = [result for result in results if tagged(result.experiment, tags)]
    if not chosen:
        unfit = [f"no run has the tag {' and '.join(tags)}"] if results else []
        raise UsageError("nothing to show: " + ("; ".join([*notes, *unfit]) or "no folder given"))
    return chosen, notes


def collect(paths: Iterable[Path], tags: Sequence[str] = ()) -> list[Result]:
    """The runs at or under these folders that have these tags; an error that says why when there is none."""
    return runs_found(paths, tags)[0]


def groups(results: Sequence[Result]) -> list[list[Result]]:
    """Runs of the same experiment on the same data, seed apart, together.

    Of each group those that came furthest, and those that had no patience left before.
    """
    same_settings: dict[str, list[Result]] = {}
    for result in results:
        settings = identity(complete(result.experiment), "seed", reporting=False)
        same_settings.setdefault(json.dumps(settings, sort_keys=True), []).append(result)
    alike = [group for members in same_settings.values() for group in _by_data(members)]
    return [[r for r in group if r.stopped or len(r.rows) == max(len(o.rows) for o in group)] for group in alike]


def _by_data(members: Sequence[Result]) -> list[list[Result]]:
    """Runs with the same settings, apart where their data differ; a run of old, without a fingerprint, cannot tell."""
    prints = dict.fromkeys(r.experiment.get("fingerprint") for r in members)
    if len([known for known in prints if known]) < 2:
        return [list(members)]
    return [[r for r in members if r.experiment.get("fingerprint") == known] for known in prints]


def complete(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A run's settings with today's defaults where it was written before there was such a setting."""
    usual = _usual(settings["method"]["name"])
    if usual is None:
        return dict(settings)
    return {**usual, **settings, "method": {**usual["method"], **settings["method"]}}


@cache
def _usual(method: str) -> dict[str, Any] | None:
    try:
        return experiment({"method": method}).plain()
    except FedstillError:  # a method of one's own, not registered here
        return None


def comparison(results: Sequence[Result]) -> list[dict[str, Any]]:
    """One row for each experiment and model: every metric's mean and spread over the seeds, last and best round."""
    return [
        summary(group, model, label(group[0].experiment, results))
        for group in groups(results)
        for model in group[0].models
    ]


def summary(group: Sequence[Result], model: str, name: str) -> dict[str, Any]:
    """One row of the comparison: a model of the runs that differ in their seed only."""
    having = [r for r in group if model in r.models]
    last = [r.last(model) for r in having]
    best = [r.best(model) for r in having]
    row: dict[str, Any] = {
        "method": name,
        "data": group[0].experiment["data"],
        "model": model,
        "rounds": max(len(r.rows) for r in group),
        "seeds": sorted(r.experiment["seed"] for r in having),
    }
    for metric in metrics_of(group):
        row[metric.key] = spread([m.get(metric.key) for m in last])
        row[f"best_{metric.key}"] = spread([m.get(metric.key) for m in best])
    row["bytes"] = {way: round(fmean(r.bytes()[way] for r in group)) for way in ("down", "up")}
    times = [r.cpu_seconds if r.recorded else r.seconds for r in group]
    spent = [time for time in times if time is not None]
    row["seconds"] = fmean(spent) if spent else None
    return row


def label(settings: Mapping[str, Any], others: Sequence[Result]) -> str:
    """The method's name, with the settings in which runs of the same method differ."""
    mine, *kin = (
        flat(identity(complete(known), "seed", reporting=False))
        for known in (settings, *(o.experiment for o in others if _akin(o.experiment, settings)))
    )
    differ: dict[str, Any] = {}
    for key in sorted(k for k in mine if any(o.get(k) != mine[k] for o in kin)):
        differ |= _apart(key, mine[key], [o.get(key) for o in kin])
    extra = ", ".join(f"{k.removeprefix('method.')}={_short(v)}" for k, v in differ.items())
    return str(settings["method"]["name"]) + (f" ({extra})" if extra else "")


def _apart(key: str, value: Any, others: Sequence[Any]) -> dict[str, Any]:
    """A setting that differs; of a list of things, such as wrappers, their names and what else differs in them.

    >>> less, more = [{"name": "quantise", "width": 4}], [{"name": "quantise", "width": 8}]
    >>> _apart("wrappers", less, [less, more]), _apart("wrappers", less, [less, []])
    ({'quantise.width': 4}, {'wrappers': ['quantise']})
    """
    mine, *kin = (_things(list_of) for list_of in (value, *others))
    if not any((mine, *kin)):
        return {key: value}
    names = {key: list(mine)} if any(list(mine) != list(other) for other in kin) else {}
    settings = {f"{name}.{k}": v for name, own in mine.items() for k, v in own.items()}
    theirs = [{f"{name}.{k}": v for name, own in other.items() for k, v in own.items()} for other in kin]
    return names | {k: v for k, v in settings.items() if any(k in other and other[k] != v for other in theirs)}


def _things(value: Any) -> dict[str, dict[str, Any]]:
    """The settings of the things in a list, by their names; nothing where it is a list of anything else."""
    things = value if isinstance(value, list | tuple) else ()
    return {thing["name"]: flat(thing) for thing in things if isinstance(thing, Mapping) and "name" in thing}


def _akin(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return bool(one["method"]["name"] == other["method"]["name"] and one["data"] == other["data"])


def _short(value: Any) -> str:
    text = ",".join(map(str, value)) or "none" if isinstance(value, list) else str(value)
    return text if len(text) <= 40 else text[:39] + "…"


def spread(values: Sequence[float | None]) -> dict[str, float] | None:
    """Mean and standard deviation over seeds (0 for one); None where there is no value."""
    known = [v for v in values if v is not None and v == v]
    if not known:
        return None
    return {"mean": fmean(known), "std": stdev(known) if len(known) > 1 else 0.0}


def metrics_of(results: Iterable[Result]) -> list[Shown]:
    """The metrics that any of these runs reports."""
    metrics: dict[str, Shown] = {}
    for result in results:
        for metric in result.metrics:
            metrics.setdefault(metric.key, metric)
    return list(metrics.values())


def cell(value: Mapping[str, float] | None, metric: Shown) -> str:
    """Mean ± spread for the eye."""
    return "–" if value is None else metric.text(value["mean"], value["std"])


def place(rows: Sequence[Mapping[str, Any]], row: Mapping[str, Any], metric: Shown) -> int:
    """1 for the best of a data set's rows, 2 for the second, else 0; the last of all is never marked."""
    if not row.get(metric.key):
        return 0

    def seen(value: Mapping[str, float]) -> float:  # what the eye cannot tell apart shares a place
        return metric.direction * float(cell(value, metric).partition(" ")[0])

    rivals = sorted({seen(r[metric.key]) for r in rows if r["data"] == row["data"] and r.get(metric.key)}, reverse=True)
    rank = rivals.index(seen(row[metric.key])) + 1
    return rank if rank <= 2 and rank < len(rivals) else 0


def _head(metrics: Sequence[Shown]) -> list[str]:
    names = ["method", "data", "model", "rounds", "seeds", *(metric.heading for metric in metrics)]
    return [*names, *(f"best {metric.title} ({metric.unit})" for metric in metrics[:1])]


def _cells(rows: Sequence[Mapping[str, Any]], metrics: Sequence[Shown], marks: Mapping[int, str]) -> list[list[str]]:
    """The body of the table; `marks` wraps the best (1) and the second (2)."""
    body = []
    for row in rows:
        line = [str(row["method"]), str(row["data"]), row["model"], str(row["rounds"]), str(len(row["seeds"]))]
        for metric in metrics:
            line.append(marks.get(place(rows, row, metric), "{}").format(cell(row.get(metric.key), metric)))
        line += [cell(row[f"best_{metric.key}"], metric) for metric in metrics[:1]]
        body.append(line)
    return body


def text(rows: Sequence[Mapping[str, Any]], form: str, metrics: Sequence[Shown] = METRICS) -> str:
    """The comparison as CSV (plain numbers), Markdown or LaTeX."""
    if form == "csv":
        return _csv(rows, metrics)
    head = _head(metrics)
    if form == "markdown":
        body = _cells(rows, metrics, {1: "**{}**", 2: "<u>{}</u>"})
        safe = [[text.replace("|", r"\|") for text in line] for line in body]
        return "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *safe])
    body = _cells(
        [{**r, **{name: _tex(str(r[name])) for name in ("method", "data", "model")}} for r in rows],
        metrics,
        {1: r"\textbf{{{}}}", 2: r"\underline{{{}}}"},
    )
    lines = [" & ".join(_signs(c) for c in line) + r" \\" for line in [[_tex(h) for h in head], *body]]
    return "\n".join(
        [
            rf"\begin{{tabular}}{{{'l' * len(head)}}}",
            r"\hline",
            lines[0],
            r"\hline",
            *lines[1:],
            r"\hline",
            r"\end{tabular}",
        ]
    )


def _csv(rows: Sequence[Mapping[str, Any]], metrics: Sequence[Shown]) -> str:
    out = io.StringIO()
    names = [f"{prefix}{metric.key}" for prefix in ("", "best_") for metric in metrics]
    writer = csv.writer(out)
    writer.writerow(
        ["method", "data", "model", "rounds", "seeds", *(f"{n}_{s}" for n in names for s in ("mean", "std"))]
    )
    for r in rows:
        numbers = [(r.get(n) or {}).get(s, "") for n in names for s in ("mean", "std")]
        writer.writerow([r["method"], r["data"], r["model"], r["rounds"], len(r["seeds"]), *numbers])
    return out.getvalue().rstrip()


def _tex(text: str) -> str:
    special = {sign: f"\\{sign}" for sign in "_%&#${}"} | {"\\": r"\textbackslash{}", "~": r"\~{}", "^": r"\^{}"}
    return "".join(special.get(sign, sign) for sign in text)


def _signs(text: str) -> str:
    for plain, tex in {"±": r"$\pm$", "↑": r"$\uparrow$", "↓": r"$\downarrow$", "⁻³": "$^{-3}$", "–": "--"}.items():
        text = text.replace(plain, tex)
    return text


def show(rows: Sequence[Mapping[str, Any]], metrics: Sequence[Shown] = METRICS) -> None:
    """The comparison in the terminal; within each data set the best is bold, the second underlined."""
    one = len({str(r["data"]) for r in rows}) == 1  # then it is said once, above
    table = Table(
        title=f"on {_plain(rows[0]['data'])}" if one else None, title_justify="left", box=None, pad_edge=False
    )
    head = _head(metrics)
    for number, name in enumerate(head):
        if not (one and name == "data"):
            table.add_column(name, justify="right" if number > 2 else "left", overflow="fold")
    escaped = [{**r, **{name: _plain(r[name]) for name in ("method", "data", "model")}} for r in rows]
    for line in _cells(escaped, metrics, {1: "[bold]{}[/bold]", 2: "[underline]{}[/underline]"}):
        table.add_row(*(text for name, text in zip(head, line, strict=True) if not (one and name == "data")))
    stdout().print(table)


def _plain(text: object) -> str:
    return escape(printable(str(text)))
