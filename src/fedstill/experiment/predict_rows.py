"""Classifying the rows of a table, or its texts or windows, with a run's model."""

from pathlib import Path
from typing import Any

from fedstill.core.value import build_named
from fedstill.data import columns
from fedstill.data.reading import Reading
from fedstill.data.rows import rows_like
from fedstill.experiment.ready import load_model
from fedstill.experiment.rundir import RunDir


def classify_rows(path: Path, file: Path, which: str | None = None, model: Any = None) -> dict[str, Any]:
    """The likeliest class of every row of a table, and its probability, by the run in folder `path`.

    `file`: .csv, .tsv, .parquet or .jsonl with the columns that the run was trained on, labels not needed; `which`: the
    model's name in the run.
    """
    ready = load_model(path, which, model=model)
    settings = RunDir.open(path).read("experiment.json").get("reading")
    reading = None if settings is None else build_named(Reading, settings)
    stored = rows_like(ready.signature.brought, columns.read_file(file), str(file), reading)
    shares = ready.probabilities(stored)
    rows = [
        {"row": number, "class": ready.class_names[int(share.argmax())], "probability": float(share.max())}
        for number, share in enumerate(shares, 1)
    ]
    return {"model": ready.name, "rows": rows}
