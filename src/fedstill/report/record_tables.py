"""Records for the eye: lists, one record, and what became of a verification."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fedstill.core.errors import UsageError
from fedstill.experiment.records import Archive, Record, matching
from fedstill.experiment.verify import Check

SHOWN = ("amp", "fm", "wlp", "accuracy")


def chosen(folder: Path, where: Sequence[str]) -> list[Record]:
    """The records of a folder that fit; an error where none does."""
    fits = matching(where)
    found = [record for record in Archive(folder) if fits(record)]
    if not found:
        raise UsageError(f"{folder}: no record{' fits ' + ', '.join(where) if where else ' there'}")
    return found


def brief(record: Record) -> dict[str, Any]:
    """A record without its curves: what was run, and the last round."""
    return {
        "id": record.id,
        "cell": record.cell,
        "method": record.experiment["method"]["name"],
        "data": record.experiment["data"],
        "alpha": record.experiment.get("partition", {}).get("alpha"),
        "seed": record.experiment["seed"],
        "rounds": record.experiment["rounds"],
        "tag": record.experiment.get("tag", []),
        "note": record.experiment.get("note", ""),
        "commit": record.commit,
        "date": record.date,
        "last": {model: {m: curve[-1] for m, curve in known.items()} for model, known in record.curves.items()},
    }


def show_list(records: Sequence[Record]) -> None:
    """A line for each record and model."""
    table = Table(box=None, pad_edge=False)
    for name in ("id", "cell", "run", "model", *SHOWN):
        table.add_column(name, justify="right" if name in SHOWN else "left", no_wrap=name == "id")
    for record in records:
        for place, (model, known) in enumerate(record.curves.items()):
            values = [f"{v:.4g}" if (v := known.get(m, [None])[-1]) is not None else "–" for m in SHOWN]
            tags = "".join(f" #{tag}" for tag in record.experiment.get("tag", []))
            about = f"{record.label}, {record.rounds[-1]} rounds{tags}"
            head = ("", "", "") if place else (record.id, record.cell, about)
            table.add_row(*head, model, *values)
    _console().print(table)


def show_one(record: Record) -> None:
    """All of one record."""
    console = _console()
    console.print(f"[bold]{record.id}[/bold] {record.label}", f"for {record.cell}" if record.cell else "")
    console.print(f"commit {record.commit or 'unknown'}, {record.date} UTC, data {record.data}, split {record.split}")
    console.print(", ".join(f"{name} {value}" for name, value in record.versions.items()))
    console.print(json.dumps(record.experiment, ensure_ascii=False, indent=1), markup=False)
    for model, known in record.curves.items():
        for metric, curve in known.items():
            values = " ".join("–" if v is None else f"{v:.4g}" for v in curve)
            console.print(f"{model} {metric}: {values}", markup=False)


def show_check(check: Check) -> None:
    """What was the same and what was not."""
    console = _console()
    verdict = "the same bits" if check.same else "NOT the same"
    console.print(f"[bold]{check.record.id}[/bold] {check.record.label}: {verdict}")
    for part, same in check.parts.items():
        console.print(f"  {part}: {'the same' if same else 'different'}")
    for name, (then, now) in check.elsewhere.items():
        console.print(f"  {name} was {then}, is {now} here: other kernels may round differently")


def _console() -> Console:
    terminal = Console(file=sys.stdout, highlight=False)
    return terminal if terminal.is_terminal else Console(file=sys.stdout, highlight=False, width=240)
