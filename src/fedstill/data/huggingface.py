"""Data sets from Hugging Face: the one file that imports its `datasets` library (extra `huggingface`)."""

import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray


def fetch(repo: str, config: str | None, image: str, label: str) -> dict[str, NDArray[Any]]:
    """The train and test parts of a data set as arrays, downloaded once and kept in the library's own cache."""
    from datasets import load_dataset

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # a failure is told once, not at every retry
    arrays: dict[str, NDArray[Any]] = {}
    for part in ("train", "test"):
        rows = load_dataset(repo, config, split=part)  # shows the progress of its download itself
        arrays[f"x_{part}"], arrays[f"y_{part}"] = _arrays(rows, image, label, f"{repo}, {part}")
    return arrays


def _arrays(rows: Any, image: str, label: str, title: str) -> tuple[NDArray[Any], NDArray[Any]]:
    from rich.console import Console
    from rich.progress import track

    x, y = [], []
    for row in track(rows, f"reading {title}", total=len(rows), console=Console(stderr=True), transient=True):
        x.append(np.asarray(row[image], np.uint8))
        y.append(row[label])
    return np.stack(x), np.asarray(y)
