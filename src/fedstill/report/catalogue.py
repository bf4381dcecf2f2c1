"""What there is: listings, a method's card, and the examination of this machine; all read from the registries."""

import inspect
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

import fedstill.methods  # noqa: F401 (registers them)
from fedstill.core.errors import UsageError, unknown
from fedstill.core.method import Method, methods
from fedstill.core.registry import Registry, import_named
from fedstill.core.turn import wrappers
from fedstill.core.value import plain
from fedstill.data import datasets, located, partitions
from fedstill.data.published import Found
from fedstill.experiment.config import Experiment, experiment
from fedstill.experiment.measures import Measure, measures
from fedstill.experiment.metrics import Metric, Shown, metrics
from fedstill.experiment.presets import describe, presets, read_preset
from fedstill.experiment.table_metrics import table_metrics
from fedstill.experiment.toml import toml
from fedstill.models import generators, models
from fedstill.parts.attacks import attacks
from fedstill.parts.gather import gathers
from fedstill.parts.pace import paces, speeds
from fedstill.report.privacy import coverage, show_coverage

KINDS: dict[str, Registry[Any]] = {
    "methods": methods,
    "models": models,
    "data": datasets,
    "partitions": partitions,
    "gathers": gathers,
    "attacks": attacks,
    "wrappers": wrappers,
    "paces": paces,
    "speeds": speeds,
    "generators": generators,
    "measures": measures,
    "metrics": metrics,
    "table-metrics": table_metrics,
}

FOR_US = ("dev", "docs", "release")
"""Extras for those who work on fedstill itself."""


def known(kind: str) -> list[str]:
    """The names of everything of a kind; of `kinds`, what can be listed."""
    if kind == "kinds":
        return [*KINDS, "presets", "runs"]
    return presets() if kind == "presets" else list(KINDS[kind])


def listing(what: str) -> list[dict[str, str]]:
    """Name and one line for everything of a kind."""
    if what == "presets":
        return [{"name": name, "about": describe(name)} for name in presets()]
    if what not in KINDS:
        raise unknown("kind of thing", what, known("kinds"))
    where = dict(located()) if what == "data" else {}
    rows = []
    for name, thing in KINDS[what].usable():
        rows.append({"name": name, "about": _about(thing).split("\n")[0]})
        if what == "data":
            rows[-1]["found"] = where[name] or "not found: see `fedstill doctor`"
        if what == "methods":
            rows[-1]["leaves a client"] = ", ".join(dict.fromkeys(thing.leaves_client().values()))
    return rows


def _about(thing: Any) -> str:
    """What a registered thing says of itself: a data set, measure or metric in a field, the rest in the docstring."""
    if isinstance(thing, Shown):
        shown = thing.in_run(measures["accuracy"]) if isinstance(thing, Metric) else thing
        return f"{shown.heading.format(goal='…')}: {shown.about}"
    if isinstance(thing, Measure):
        return thing.doc or thing.title
    return (thing.doc if isinstance(thing, Found) else "") or inspect.getdoc(thing) or ""


def card(name: str) -> dict[str, Any]:
    """A registered thing: what it is, its settings, and for a method what leaves a client; of a preset, its content."""
    if name in presets():
        preset = read_preset(name)
        about = f"{preset.title}. {preset.note}".strip()
        return {"name": name, "kind": "preset", "about": about, "content": dict(preset.content)}
    kind, thing = _named(name)
    described: dict[str, Any] = {"name": name, "kind": kind, "about": _about(thing)}
    if inspect.isclass(thing) and is_dataclass(thing):
        described["settings"] = settings_of(thing)
    if inspect.isclass(thing) and issubclass(thing, Method):
        described |= {"paper": thing.paper, "leaves_client": thing.leaves_client()}
        described["needs_public_data"] = thing.needs_public
        described["different_architectures"] = not thing().one_architecture
        described["covered_by"] = coverage(thing())
    return described


def _named(name: str) -> tuple[str, Any]:
    """A registered thing and its kind; `package.module:Name` is of the first kind that it can be."""
    holding = {kind: registry for kind, registry in KINDS.items() if name in registry}
    if not holding:
        raise unknown("name", name, {*(n for registry in KINDS.values() for n in registry), *presets()})
    if len(holding) == len(KINDS):  # from outside
        import_named("name", name)
    for kind, registry in sorted(holding.items(), key=lambda item: item[1].takes_any):
        with suppress(UsageError):
            return kind, registry[name]
    raise UsageError(f"name = {name!r}: is nothing that fedstill can use: {', '.join(KINDS)}")


def settings_of(value: Any) -> list[dict[str, Any]]:
    """The settings of a class of values, such as `Experiment` or a method: name, default, meaning, bounds of each."""
    return [
        {
            "name": f.name,
            "default": None if f.default is MISSING else plain(f.default),
            "about": f.metadata.get("doc", ""),
            **f.metadata.get("bounds", {}),
        }
        for f in fields(value)
        if f.init and (f.metadata or f.default is not MISSING)
    ]


def starter(name: str) -> str:
    """An experiment.toml for a method, every setting with its meaning."""
    plan = experiment({"method": name}).plain()
    docs = {f.name: f.metadata.get("doc", "") for f in fields(Experiment)}
    return f"# fedstill run experiment.toml\n\n{toml(plan, docs)}"


def examination() -> dict[str, Any]:
    """What is installed, how many cores are used, and which data sets were found where."""
    import torch

    needed = ("fedstill", "torch", "numpy", "scikit-learn", "mlxtend", "safetensors", "typer", "rich", "matplotlib")
    return {
        "packages": {name: _version(name) for name in needed},
        "extras": {extra: _version(name) for extra, name in _extras().items() if extra not in FOR_US},
        "cores": os.cpu_count(),
        "accelerator": "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else None,
        "FEDSTILL_DATA": os.environ.get("FEDSTILL_DATA"),
        "data": dict(located()),
    }


def _extras() -> dict[str, str]:
    """The package's extras, each with the first package that it brings; from the package's own metadata."""
    try:
        lines = requires("fedstill") or []
    except PackageNotFoundError:
        return {}
    extras: dict[str, str] = {}
    for line in lines:
        if named := re.match(r"([\w.-]+).*extra == [\"'](\w+)[\"']", line):
            extras.setdefault(named[2], named[1])
    return extras


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def show_listing(rows: Sequence[Mapping[str, str]]) -> None:
    """Print a listing."""
    table = Table(box=None, pad_edge=False)
    for name in rows[0] if rows else ["nothing"]:
        table.add_column(name, no_wrap=name == "name", overflow="fold")
    for row in rows:
        table.add_row(*(Text(text) for text in row.values()))
    Console().print(table)


def show_card(described: Mapping[str, Any]) -> None:
    """Print a card."""
    console = Console(highlight=False, markup=False)
    console.print(Text.assemble((str(described["name"]), "bold"), f"  {described['about']}\n"))
    if "content" in described:
        print(toml(described["content"]["base"]))
        for way in ("rows", "columns"):
            print(f"{way}: {', '.join(entry['label'] for entry in described['content'][way])}")
        print(f"\nfedstill reproduce {described['name']} --dry-run")
    if described.get("paper"):
        console.print(f"paper: {described['paper']}")
    if "leaves_client" in described:
        console.print("what leaves a client:")
        for name, what in described["leaves_client"].items():
            console.print(f"  {name}: {what}")
        show_coverage(console, described["covered_by"])
        console.print(f"public data: {'needed' if described['needs_public_data'] else 'not needed'}\n")
    if described.get("settings"):
        table = Table(box=None, pad_edge=False)
        for column in ("setting", "default", "meaning"):
            table.add_column(column, overflow="fold")
        for entry in described["settings"]:
            default = entry["default"]["name"] if isinstance(entry["default"], dict) else entry["default"]
            table.add_row(*(Text(str(text)) for text in (entry["name"], default, entry["about"])))
        console.print(table)


def show_examination(examined: Mapping[str, Any]) -> None:
    """Print the examination."""
    for name, number in examined["packages"].items():
        print(f"{name:<14} {number or 'missing'}")
    for name, number in examined["extras"].items():
        missing = f"not installed: pip install 'fedstill[{name}]'"
        print(f"{name:<14} {number or missing}")
    print(f"{'cores':<14} {examined['cores']}: one worker process each, one thread in each")
    print(f"{'accelerator':<14} {examined['accelerator'] or 'none'}")
    print(f"{'FEDSTILL_DATA':<14} {examined['FEDSTILL_DATA'] or 'not set'}\n\ndata sets:")
    for name, where in examined["data"].items():
        missing = "not found: where its files come from, and where they go: docs/data.md"
        print(f"  {name:<16} {where or missing}")
