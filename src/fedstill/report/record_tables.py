"""Records for the eye: lists, one record, and the outcome of a verification."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from fedstill.core.errors import UsageError
from fedstill.experiment.archive import Archive, fitting
from fedstill.experiment.metrics import ALWAYS
from fedstill.experiment.records import Record, made_by
from fedstill.experiment.rundir import commit
from fedstill.experiment.verify import Check
from fedstill.report.terminal import stdout


def chosen(folder: Path, where: Sequence[str]) -> list[Record]:
    """The records of a folder that fit; an error where none does."""
    records = Archive(folder).records
    if not records:
        raise UsageError(f"{folder}: no record there")
    found = fitting(records, where)
    if not found:
        raise UsageError(f"{folder}: no record fits {', '.join(where)}")
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
    for name in ("id", "cell", "run", "model", *ALWAYS):
        table.add_column(name, justify="right" if name in ALWAYS else "left", no_wrap=name == "id")
    for record in records:
        for place, (model, known) in enumerate(record.curves.items()):
            values = [f"{v:.4g}" if (v := known.get(m, [None])[-1]) is not None else "–" for m in ALWAYS]
            tags = "".join(f" #{tag}" for tag in record.experiment.get("tag", []))
            about = f"{record.label}, {record.rounds[-1]} rounds{tags}"
            head = ("", "", "") if place else (record.id, record.cell, about)
            table.add_row(*map(escape, (*head, model)), *values)
    stdout(highlight=False).print(table)


def show_one(record: Record) -> None:
    """All of one record."""
    console = stdout(highlight=False)
    cell = f"for {record.cell}" if record.cell else ""
    console.print(f"[bold]{escape(record.id)}[/bold] {escape(record.label)}", escape(cell))
    console.print(
        f"commit {record.commit or 'unknown'}, {record.date} UTC, data {record.data}, split {record.split}",
        markup=False,
    )
    console.print(", ".join(f"{name} {value}" for name, value in record.versions.items()), markup=False)
    console.print(json.dumps(record.experiment, ensure_ascii=False, indent=1), markup=False)
    for model, known in record.curves.items():
        for metric, curve in known.items():
            values = " ".join("–" if v is None else f"{v:.4g}" for v in curve)
            console.print(f"{model} {metric}: {values}", markup=False)


OLDER_KERNELS = "ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2"
"""What makes a processor with AVX-512 round as one with AVX2 does: for PyTorch, oneDNN and MKL."""


def show_check(check: Check) -> None:
    """What was the same and what was not."""
    console = stdout(highlight=False)
    console.print(f"[bold]{escape(check.record.id)}[/bold] {escape(check.record.label)}: {check.outcome}")
    for part, same in check.parts.items():
        console.print(f"  {part}: {'the same' if same else 'different'}")
    if check.same:
        return
    code = f"commit {commit()}" if commit() else "the code at hand"
    console.print(f"  {made_by(check.record)}; run again by {code}", soft_wrap=True, markup=False)
    for name, (then, now) in check.elsewhere.items():
        before = "was not recorded" if then is None else f"was {then}"
        console.print(f"  {name} {before}, is {now} here: another may round differently", soft_wrap=True, markup=False)
    if check.elsewhere.get("cpu") == ("AVX2", "AVX512"):
        console.print(f"  {OLDER_KERNELS} before the command takes the kernels of then", soft_wrap=True)
