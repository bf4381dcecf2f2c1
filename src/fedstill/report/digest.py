"""What the page shows, as plain numbers: runs, and series of them (a model of one experiment, over its seeds)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from fedstill.experiment.result import Result
from fedstill.experiment.toml import toml
from fedstill.report import tables
from fedstill.report.command import command
from fedstill.report.figures.plots import malicious_clients
from fedstill.report.privacy import left_clients


@dataclass(frozen=True)
class Series:
    """A line of the page: one model of the runs that differ in their seed only, and the chapter it stands in."""

    chapter: str
    group: str
    """What the runs are called: the method, with what tells it from its neighbours."""
    model: str
    runs: tuple[Result, ...]
    label: str = ""
    """What the line is called; the group and the model when not said."""

    @property
    def title(self) -> str:
        """The line's name."""
        alone = len(self.runs[0].models) == 1
        return self.label or (self.group if alone else f"{self.group} · {self.model}")


def series_of(results: Sequence[Result]) -> list[Series]:
    """Every model of every experiment; a chapter for each data set."""
    by_data: dict[str, list[Result]] = {}
    for result in results:
        by_data.setdefault(str(result.experiment["data"]), []).append(result)
    series = []
    for chapter, inside in by_data.items():
        for group in tables.groups(inside):
            name, runs = tables.label(group[0].experiment, inside), tuple(sorted(group, key=_seed))
            series += [Series(chapter, name, model, runs) for model in group[0].models]
    return series


def chapters(series: Sequence[Series]) -> dict[str, list[Series]]:
    """The lines of each chapter, in the order in which the chapters first come."""
    by_chapter: dict[str, list[Series]] = {}
    for line in series:
        by_chapter.setdefault(line.chapter, []).append(line)
    return by_chapter


def _seed(result: Result) -> int:
    return int(result.experiment.get("seed", 0))


def digest(series: Sequence[Series]) -> dict[str, Any]:
    """The page's data. Numbers stay as they are in metrics.jsonl; of clients only the last round is kept."""
    runs: dict[int, tuple[int, Result]] = {}
    for line in series:
        for result in line.runs:
            runs.setdefault(id(result), (len(runs), result))
    shared = _Shared()
    titles = list(chapters(series))
    keys = list(dict.fromkeys((line.chapter, tuple(id(r) for r in line.runs)) for line in series))
    entries = [
        {
            "chapter": titles.index(line.chapter),
            "group": keys.index((line.chapter, tuple(id(r) for r in line.runs))),
            "label": line.title,
            "model": line.model,
            "runs": [runs[id(r)][0] for r in line.runs if line.model in r.models],
        }
        for line in series
    ]
    names = {(line.chapter, tuple(id(r) for r in line.runs)): line.group for line in series}
    groups = [
        {
            "chapter": titles.index(chapter),
            "label": names[chapter, members],
            "method": runs[members[0]][1].experiment["method"]["name"],
            "runs": [runs[r][0] for r in members],
            "leaves": left_clients(runs[members[0]][1].experiment),
        }
        for chapter, members in keys
    ]
    digests = [_run(result, shared) for _, result in runs.values()]
    whole: dict[str, Any] = finite(
        {
            "metrics": [metric.plain() for metric in tables.metrics_of(r for _, r in runs.values())],
            "chapters": titles,
            "series": entries,
            "groups": groups,
            "runs": digests,
            "partitions": shared.items["partition"],
            "versions": shared.items["versions"],
        }
    )
    return whole


class _Shared:
    """What several runs have in common is kept once."""

    def __init__(self) -> None:
        self.items: dict[str, list[Any]] = {"partition": [], "versions": []}

    def place(self, kind: str, item: Any) -> int | None:
        if item is None:
            return None
        known = self.items[kind]
        if item not in known:
            known.append(item)
        return known.index(item)


def _run(result: Result, shared: _Shared) -> dict[str, Any]:
    plan, rows = result.experiment, result.rows
    evaluated = [row for row in rows if row.get("models")]
    made = dict(_read(result, "versions.json") or {})
    typed = made.pop("command", None)
    known = {
        "name": result.place,
        "seed": _seed(result),
        "planned": plan.get("rounds", len(rows)),
        "done": len(rows),
        "rounds": [row["round"] for row in evaluated],
        "models": {model: _curves(result, model) for model in result.models},
        "fields": result.bytes_by_field(),
        "traffic": {way: _traffic(result, way) for way in ("down", "up")},
        "turns": sum(len(row["active"]) for row in rows),
        "answers": sum(len(row["active"]) - len(row.get("missing", {})) for row in rows),
        "missing": sum(len(row.get("missing", {})) for row in rows),
        "seconds": _seconds(rows),
        "malicious": malicious_clients(result),
        "partition": shared.place("partition", _read(result, "partition.json")),
        "versions": shared.place("versions", made or None),
        "config": toml(plan),
        "again": command(plan),
        "typed": typed,
    }
    trust = _trust(rows, plan)
    return {**known, **({"trust": trust} if trust else {})}


def _curves(result: Result, model: str) -> dict[str, Any]:
    """Every metric of a model over the rounds, and how it serves every client at the end."""
    curves: dict[str, Any] = {metric.key: result.curve(model, metric.key) for metric in result.metrics}
    return {**curves, "clients": result.per_client(model)}


def _read(result: Result, name: str) -> Any:
    try:
        return result.file(name)
    except tables.WRONG:
        return None


def _traffic(result: Result, way: str) -> list[int]:
    """Bytes sent so far, at every evaluated round."""
    so_far = accumulate(sum(row["bytes"].get(way, {}).values()) for row in result.rows)
    return [count for row, count in zip(result.rows, so_far, strict=True) if row.get("models")]


def _seconds(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for row in rows:
        for phase, spent in row["seconds"].items():
            total[phase] = total.get(phase, 0.0) + spent
    return total


def _trust(rows: Sequence[Mapping[str, Any]], plan: Mapping[str, Any]) -> dict[str, Any] | None:
    """Round by round, a sign for each client: + trusted, - shut out, space: not there."""
    judged = [(row["round"], row["facts"]) for row in rows if "trusted" in row.get("facts", {})]
    if not judged:
        return None
    signs = []
    for _, facts in judged:
        trusted, answered = set(facts["trusted"]), set(facts.get("answered", facts["trusted"]))
        signs.append("".join("+" if k in trusted else "-" if k in answered else " " for k in range(plan["clients"])))
    right = [row.get("identification", {}) for row in rows if "trusted" in row.get("facts", {})]
    return {
        "rounds": [number for number, _ in judged],
        "signs": signs,
        "precision": [entry.get("precision") for entry in right],
        "recall": [entry.get("recall") for entry in right],
    }


def finite(value: Any) -> Any:
    """JSON knows no NaN: a number that is none becomes null."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {key: finite(item) for key, item in value.items()}
        case list() | tuple():
            return [finite(item) for item in value]
    return value
