"""Classifying the rows of a table, its texts or windows, or the samples of an .npz file, with a run's model."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from fedstill.core.errors import DataError
from fedstill.core.kind import Kind
from fedstill.data import columns
from fedstill.data.arrays import known_about
from fedstill.data.files import read_npz
from fedstill.data.forms import stored
from fedstill.data.kinds import Series, Table
from fedstill.data.reading import Reading
from fedstill.data.rows import needed, rows_like
from fedstill.experiment.ready import load_model

ARRAYS = ".npz"


def classify_rows(path: Path, file: Path, which: str | None = None, model: Any = None) -> dict[str, Any]:
    """The likeliest class of every row, window or sample of a file, and its probability, by the run in folder `path`.

    `file`: .csv, .tsv, .parquet or .jsonl with the columns that the run was trained on, or .npz with samples `x`;
    labels are not needed. `which`: the model's name in the run.
    """
    ready = load_model(path, which, model=model)
    kind = ready.signature.brought
    if file.suffix == ARRAYS:
        unit, inputs = "sample", _samples(file, kind)
    else:
        reading = ready.signature.rows
        unit = "window" if isinstance(kind, Series) else "row"
        table = columns.read_file(file, _by_model(kind, reading), needed(kind, reading))
        inputs = rows_like(kind, table, str(file), reading)
    shares = ready.probabilities(inputs)
    rows = [
        {unit: number, "class": ready.class_names[int(share.argmax())], "probability": float(share.max())}
        for number, share in enumerate(shares, 1)
    ]
    return {"model": ready.name, "rows": rows}


def _by_model(kind: Kind, reading: Reading | None) -> Reading | None:
    """How a new table is read: what the model has as categories are some, whatever they look like there."""
    if not isinstance(kind, Table):
        return reading
    return replace(reading or Reading(), categorical=kind.categorical, categories=(), ignore=())


def _samples(file: Path, kind: Kind) -> Any:
    """The samples `x` of an .npz file; a table's columns may stand in the order of the file's own `names`."""
    arrays = read_npz(file)
    if "x" not in arrays:
        raise DataError(f"{file}: no x inside, only {', '.join(sorted(arrays)) or 'nothing'}")
    return (
        stored(str(file), arrays["x"], "table", known_about(str(file), arrays))
        if isinstance(kind, Table)
        else arrays["x"]
    )
