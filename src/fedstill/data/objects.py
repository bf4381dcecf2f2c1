"""Data sets that are objects of other libraries: frames, torch's data sets, Hugging Face's."""

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch.utils.data import Dataset as TorchDataset

from fedstill.core.errors import DataError, UsageError, unknown
from fedstill.data import arrays
from fedstill.data.columns import ArrowStream, from_frame
from fedstill.data.folder import TOO_DEEP, common_mode, pixels_of
from fedstill.data.reading import Reading
from fedstill.data.samples import Dataset


def from_object(spec: Any, reading: Reading) -> Dataset | None:
    """The data set of a frame, or of a torch or Hugging Face data set; None for anything else."""
    if _hugging_face(spec) or is_split_dictionary(spec):
        return _from_hugging_face(spec, reading)
    if isinstance(spec, ArrowStream):
        from fedstill.data import tables

        return tables.dataset("own data", from_frame(spec), "own data", reading)
    if isinstance(spec, TorchDataset):
        return _from_torch(spec, reading)
    return None


def _from_torch(spec: Any, reading: Reading) -> Dataset:
    """A torch data set of (x, y) pairs, read once from its first to its last."""
    try:
        pairs = [spec[i] for i in range(len(spec))]
        if pairs and isinstance(pairs[0], Mapping):
            raise TypeError(f"it gives dictionaries of {', '.join(map(str, pairs[0]))}")
        x, y = [np.asarray(pair[0]) for pair in pairs], [int(pair[1]) for pair in pairs]
    except (TypeError, ValueError, IndexError, KeyError, NotImplementedError) as error:
        raise UsageError(
            f"data = {type(spec).__name__}: a torch data set must have a length and give (x, class number) ({error})"
        ) from None
    if not x:
        raise DataError(f"data = {type(spec).__name__}: empty")
    if len({one.shape for one in x}) > 1:
        raise DataError(f"data = {type(spec).__name__}: samples of different shapes ({x[0].shape} and others)")
    return arrays.dataset("own data", {"x": np.stack(x), "y": np.array(y)}, type(spec).__name__, kind=reading.kind)


def is_split_dictionary(spec: Any) -> bool:
    """Is this a dictionary of Hugging Face data sets: train, and perhaps test?"""
    return isinstance(spec, Mapping) and bool(spec) and all(_hugging_face(part) for part in spec.values())


def _hugging_face(spec: Any) -> bool:
    """Is this a Hugging Face data set? Only who has imported the library can hold one."""
    library = sys.modules.get("datasets")
    return library is not None and isinstance(spec, library.Dataset)


def _from_hugging_face(spec: Any, reading: Reading) -> Dataset:
    """Its columns as a table; a dictionary's train and test parts become those of the data set."""
    import pyarrow as pa

    from fedstill.data import tables

    parts = dict(spec) if isinstance(spec, Mapping) else {"train": spec}
    if "train" not in parts:
        raise UsageError(f"data: a dictionary of data sets needs a train part; there are {', '.join(parts)}")
    chosen = {name: part for name, part in parts.items() if name in ("train", "test")}
    if (pictures := _picture_column(chosen["train"])) is not None and reading.text is None:
        return _pictures(chosen, pictures, reading)
    columns = []
    for name, part in chosen.items():
        table = _named_classes(part, part.with_format("arrow")[:])
        if len(chosen) > 1:
            table = table.append_column("split", pa.array([name] * table.num_rows))
        columns.append(table)
    if len(columns) > 1:
        reading = Reading(**{**vars(reading), "split": "split"})
    return tables.dataset("own data", from_frame(pa.concat_tables(columns)), "own data", reading)


def _picture_column(part: Any) -> str | None:
    """The first column of images."""
    import datasets

    return next((name for name, feature in part.features.items() if isinstance(feature, datasets.Image)), None)


def _pictures(parts: Mapping[str, Any], column: str, reading: Reading) -> Dataset:
    """The data set of a column of images, with the classes (and sites) of the columns that `reading` names."""
    if reading.label is None:
        names = [name for name in parts["train"].column_names if name != column]
        raise UsageError(f"own data: say which column is the label (label = …); columns: {', '.join(names)}")
    known: dict[str, Any] = {}
    for name, part in parts.items():
        for wanted, what in ((reading.label, "y"), (reading.site, "site")):
            if wanted is not None and wanted not in part.column_names:
                raise unknown(f"column of own data ({'label' if what == 'y' else 'site'} =)", wanted, part.column_names)
            if wanted is not None:
                known[f"{what}_{name}"] = _named_classes(part, part.with_format("arrow")[:])[wanted].to_pylist()
        known[f"x_{name}"] = list(part[column])
    images = [image for name in parts for image in known[f"x_{name}"]]
    odd = next((image.size for image in images if image.size != images[0].size), None)
    if odd is not None and reading.resize is None:
        raise DataError(
            f"own data: images of {'×'.join(map(str, images[0].size))} and of {'×'.join(map(str, odd))} pixels; "
            "all must have one size, or be resized (resize = 32)"
        )
    size = images[0].size if reading.resize is None else (reading.resize, reading.resize)
    mode = common_mode(image.mode for image in images)
    if mode is None:
        raise DataError(f"own data: {TOO_DEEP}")
    for name in parts:
        known[f"x_{name}"] = np.stack([pixels_of(image, size, mode) for image in known[f"x_{name}"]])
    return arrays.dataset("own data", known, "own data", kind="image")


def _named_classes(part: Any, table: Any) -> Any:
    """The table with names for class numbers, where its features know them."""
    import datasets
    import pyarrow as pa

    for place, (name, feature) in enumerate(part.features.items()):
        if isinstance(feature, datasets.ClassLabel):
            names = pa.array([feature.int2str(int(n)) for n in table.column(name).to_pylist()])
            table = table.set_column(place, name, names)
    return table
