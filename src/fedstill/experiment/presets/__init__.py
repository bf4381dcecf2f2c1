"""The papers' tables and figures as files: each a base experiment, rows, columns, and the paper's numbers.

A cell's experiment is `base` (with `full`: the paper's size), then the column's `set` (and `full_set`), then the row's
`set`; its method the row's (and `full_method`), then what the column says of all methods (and `full_method`), then of
this one.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from fedstill.core.errors import UsageError, unknown

RUNS = ("table", "curves", "times", "forgetting", "features", "clusters", "weights")
KINDS = (*RUNS, "partition", "images", "centralised", "passes")
_TOP = {"title", "paper", "source", "kind", "metrics", "note", "base", "full", "rows", "columns", "numbers", "claims"}
_TOP |= {"first_seed"}  # seeds are counted from here: earlier ones were used to choose settings
_TOP |= {"every_method", "tuned"}  # a row for every registered method, and their rates
ONE_ROUND = {"rounds": 1, "active": 1.0, "evaluate_every": 1}
"""What a row of every method sets for those that are meant for a single round."""
_ROW = {"label", "method", "model", "set", "full_method", "full_set"}
_COLUMN = {"label", "set", "full_set", "method", "full_method", "methods", "metrics", "only"}


@dataclass(frozen=True)
class Cell:
    """One cell of a table: its experiment as settings, which model and metrics it shows, and the paper's numbers."""

    row: str
    column: str
    settings: Mapping[str, Any]
    model: str
    metrics: tuple[str, ...]
    paper: Mapping[str, Any]
    """Metric → number, [mean, spread], or text like ">60"."""
    yardstick: bool = False
    """Whether it is the first of FedAvg's in its column: targets and ratios are taken from it, and from no other."""


@dataclass(frozen=True)
class Preset:
    """A table or figure of a paper."""

    name: str
    title: str
    kind: str
    note: str
    content: Mapping[str, Any]

    @property
    def first_seed(self) -> int:
        """The first of the seeds that the preset is judged by."""
        return int(self.content.get("first_seed", 1))

    def cells(self, full: bool = False) -> list[Cell]:
        """Every cell, row by row."""
        found = [
            self._cell(row, column, full)
            for row in self.content["rows"]
            for column in self.content["columns"]
            if row["label"] in column.get("only", [row["label"]])
        ]
        fedavg = [cell for cell in found if cell.settings["method"]["name"] == "fedavg"]
        first = {cell.column: cell for cell in reversed(fedavg)}
        return [replace(cell, yardstick=cell is first.get(cell.column)) for cell in found]

    def _cell(self, row: Mapping[str, Any], column: Mapping[str, Any], full: bool) -> Cell:
        whole = self.content
        method = dict(row.get("method", {"name": "fedavg"}))
        parts = [whole.get("base"), full and whole.get("full"), column.get("set"), full and column.get("full_set")]
        settings = _merged([*parts, row.get("set"), full and row.get("full_set")])
        if "attack" not in settings:  # the rows name who is malicious; a column without an attack is a normal day
            settings.pop("malicious", None)
        own = column.get("methods", {}).get(method["name"])
        layers = [column.get("method"), full and column.get("full_method"), own]
        settings["method"] = _merged([method, full and row.get("full_method"), *layers])
        return Cell(
            row["label"],
            column["label"],
            settings,
            row.get("model", "global"),
            tuple(column.get("metrics", whole["metrics"])),
            whole.get("numbers", {}).get(row["label"], {}).get(column["label"], {}),
        )


def _merged(parts: Sequence[Any]) -> dict[str, Any]:
    return {key: value for part in parts if part for key, value in part.items()}


def presets() -> list[str]:
    """The names of all presets, `paper/table`."""
    room = resources.files(__name__)
    return sorted(
        f"{paper.name}/{file.name.removesuffix('.toml')}"
        for paper in room.iterdir()
        if paper.is_dir()
        for file in paper.iterdir()
        if file.name.endswith(".toml")
    )


@cache
def read_preset(name: str) -> Preset:
    """A preset by its name, or from a file of one's own that ends in .toml."""
    if name.endswith(".toml"):
        try:
            text = Path(name).read_text(encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{name}: {error.strerror or error}") from None
        except UnicodeDecodeError as error:
            raise UsageError(f"{name}: is not UTF-8 text (byte {error.start})") from None
    elif name in presets():
        text = (resources.files(__name__) / f"{name}.toml").read_text(encoding="utf-8")
    else:
        raise unknown("preset", name, presets())
    try:
        content = _with_methods(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{name}: {error}") from None
    _check(name, content)
    plain_name = Path(name).stem if name.endswith(".toml") else name
    return Preset(plain_name, content["title"], content["kind"], " ".join(content.get("note", "").split()), content)


def _with_methods(content: dict[str, Any]) -> dict[str, Any]:
    """The content, with a row for every registered method where it asks for them (`tuned`: their rates)."""
    if not content.get("every_method"):
        return content
    import fedstill.methods  # noqa: F401 (registers them)
    from fedstill.core.method import methods

    tuned = content.get("tuned", {})
    rows = [
        {
            "label": name,
            "method": {"name": name, **({"lr": tuned[name]} if name in tuned else {})},
            **({"set": ONE_ROUND} if method.one_round else {}),
        }
        for name, method in methods.usable()
    ]
    return {**content, "rows": sorted(rows, key=lambda row: str(row["label"]))}


def _check(name: str, content: Mapping[str, Any]) -> None:
    """Refuse what is misspelt: a setting that is silently ignored would make a wrong table."""
    for key in ("title", "kind", "metrics", "rows", "columns"):
        if key not in content:
            raise UsageError(f"{name}: has no {key!r}")
    if content["kind"] not in KINDS:
        raise UsageError(f"{name}: kind = {content['kind']!r}: must be one of {', '.join(KINDS)}")
    for key in ("rows", "columns", "claims"):
        if not _is_list_of(dict, content.get(key, [])):
            raise UsageError(f"{name}: {key} = {content[key]!r}: must be tables, [[{key}]]")
    places = [("", content, _TOP)]
    places += [(" in a row", row, _ROW) for row in content["rows"]]
    places += [(" in a column", column, _COLUMN) for column in content["columns"]]
    for where, part, known in places:
        for key in part:
            if key not in known:
                raise unknown(f"key of {name}{where}", key, known)
    labels = {what: _labels(name, what, content[what]) for what in ("rows", "columns")}
    for row in content["rows"]:
        if "name" not in row.get("method", {"name": "fedavg"}):
            raise UsageError(f"{name}, row {row['label']!r}: its method has no name")
    _check_numbers(name, content.get("numbers", {}), labels["rows"], labels["columns"])


def _is_list_of(kind: type, value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(part, kind) for part in value)


def _labels(name: str, what: str, parts: Sequence[Mapping[str, Any]]) -> list[str]:
    """The labels of rows or columns: each has one of its own, by which numbers and claims know it."""
    labels: list[str] = []
    for part in parts:
        label = part.get("label")
        if not isinstance(label, str):
            raise UsageError(f"{name}: label = {label!r} of one of the {what}: must be a text")
        if label in labels:
            raise UsageError(f"{name}: two {what} have the label {label!r}")
        labels.append(label)
    return labels


def _check_numbers(name: str, numbers: Mapping[str, Any], rows: Sequence[str], columns: Sequence[str]) -> None:
    """Refuse the paper's numbers of cells that are not there, or in another form than tables can show."""
    for row, cells in numbers.items():
        if not isinstance(cells, dict) or not _is_list_of(dict, list(cells.values())):
            raise UsageError(f"{name}: numbers of {row!r}: must be column = {{ metric = number }}")
        for label, known in ((row, rows), *((column, columns) for column in cells)):
            if label not in known:
                raise unknown(f"label in the numbers of {name}", label, known)
        for column, metrics in cells.items():
            for metric, value in metrics.items():
                parts = value if isinstance(value, list) and len(value) == 2 else [value]
                if not (isinstance(value, str) or all(type(part) in (int, float) for part in parts)):
                    where = f"{name}, {row!r} × {column!r}"
                    raise UsageError(f"{where}: {metric} = {value!r}: must be a number, [mean, spread] or a text")


def describe(name: str) -> str:
    """A preset's title."""
    return read_preset(name).title
