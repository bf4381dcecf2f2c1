"""From anybody's arrays to samples, with one clear line for everything that can be wrong with them.

>>> import numpy as np
>>> samples("mine", np.zeros((4, 28, 28), np.uint8), [0, 1, 1, 0]).shape
(1, 28, 28)
>>> samples("mine", np.zeros((4, 9, 128)), [0, 1, 1, 0]).kind.words()
'series of 9×128'
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedstill.core.errors import DataError
from fedstill.core.kind import Kind, sides
from fedstill.core.registry import Registry
from fedstill.data.forms import About, Norm, as_array, coarse, first_row, kind_name, measured, stored, writable
from fedstill.data.samples import Dataset, Samples, Sites

Arrays = Mapping[str, Any]
"""x_train, y_train (or x, y), and what else `dataset` lists."""
ALIASES = {"x": "x_train", "y": "y_train", "site": "site_train", "channels": "names"}


def dataset(
    name: str,
    arrays: Arrays,
    where: str,
    class_names: tuple[str, ...] | None = None,
    norm: Norm | None = None,
    kind: str = "auto",
) -> Dataset:
    """A checked data set from arrays; kind, classes and normalisation are found in them where they are not given.

    `arrays` has x_train and y_train (or x and y). It may have x_test and y_test; site_train (or site) and site_test,
    the site of each sample, with site_names; classes, the names of the classes; names, of columns or channels;
    categories, texts such as `sex=f|m` for the columns of a table that hold codes; and kind.
    """
    arrays = {ALIASES.get(key, key): value for key, value in arrays.items()}
    for key in ("x_train", "y_train"):
        if key not in arrays:
            raise DataError(f"{where}: no {key} inside, only {', '.join(sorted(arrays)) or 'nothing'}")
    if ("x_test" in arrays) != ("y_test" in arrays):
        raise DataError(f"{where}: x_test and y_test belong together, one is missing")
    about = replace(known_about(where, arrays), norm=norm)
    about = about if kind == "auto" else replace(about, kind=kind)
    parts = {part: arrays[f"y_{part}"] for part in ("train", "test") if f"y_{part}" in arrays}
    labels, class_names = numbered(where, parts, class_names or texts(arrays.get("classes")))
    train = samples(f"{where}, train part", arrays["x_train"], labels["train"], about=about)
    test = None
    if "test" in labels:
        test = samples(f"{where}, test part", arrays["x_test"], labels["test"], train, about)
    classes = count_classes(where, [train], test)
    if class_names and classes > len(class_names):
        raise DataError(f"{where}: label {classes - 1} found, but {name} has {len(class_names)} classes")
    names = class_names or tuple(map(str, range(classes)))
    sites = site_numbers(where, arrays, len(train), None if test is None else len(test))
    odd = doubts(where, arrays, about)
    return Dataset(name, train, test, len(names), names, source=where, sites=sites, doubts=odd)


def doubts(where: str, arrays: Arrays, about: About) -> tuple[str, ...]:
    """What may be wrong with the training samples once they are stored."""
    array = as_array(where, "x", arrays["x_train"])
    return coarse(array, kind_name(array, about.kind), about)


def samples(where: str, x: Any, y: Any, like: Samples | None = None, about: About | None = None) -> Samples:
    """Checked samples from an array and class numbers (numpy, torch or lists).

    Their kind is that of `like` where given, which they must agree with; else it is found in the array.
    """
    about = about or About()
    array = as_array(where, "x", x)
    name = kind_name(array, about.kind) if like is None else Registry.name_of(type(like.kind))
    array, labels = stored(where, array, name, about), _labels(where, y)
    if like is not None and (array.shape[1:], str(array.dtype)) != (tuple(like.x.shape[1:]), _dtype(like)):
        here, there = f"{array.dtype} {sides(array.shape[1:])}", form(like)
        raise DataError(f"{where.removesuffix(', test part')}: train {like.kind.plural} are {there}, "
                        f"test {like.kind.plural} {here}")  # fmt: skip
    kind: Kind = measured(array, name, about) if like is None else like.kind
    if len(array) != len(labels):
        raise DataError(f"{where}: {len(array)} {kind.plural} but {len(labels)} labels")
    return Samples(torch.from_numpy(array), torch.from_numpy(labels), kind)


def known_about(where: str, arrays: Arrays) -> About:
    """Names, categories and kind that came along with the arrays."""
    categories: dict[str, tuple[str, ...]] = {}
    for line in texts(arrays.get("categories")):
        column, equals, known = line.partition("=")
        if not equals:
            raise DataError(f"{where}: categories: {line!r} must be column=one|two|…")
        categories[column] = tuple(known.split("|"))
    kind = str(arrays["kind"]) if "kind" in arrays else "auto"
    return About(kind, texts(arrays.get("names")), categories)


def texts(values: Any) -> tuple[str, ...]:
    """An array or list of names as texts; none for None."""
    return () if values is None else tuple(map(str, np.asarray(values).ravel().tolist()))


def numbered(
    where: str, parts: Mapping[str, Any], class_names: tuple[str, ...], least: int = 2
) -> tuple[dict[str, NDArray[Any]], tuple[str, ...]]:
    """Labels as numbers, and the names of the classes.

    Labels that are texts are numbered in alphabetical order. Whole numbers that do not begin at 0 are numbered from 0
    in their order, and keep their own number as a name, if there are at least so many.

    >>> numbered("mine", {"train": ["dog", "cat"], "test": ["dog"]}, ())[1]
    ('cat', 'dog')
    >>> found, names = numbered("mine", {"train": [1, 2, 3]}, ())
    >>> found["train"].tolist(), names
    ([0, 1, 2], ('1', '2', '3'))
    """
    labels = {part: _named(f"{where}, {part} part", "label", values) for part, values in parts.items()}
    if not all(values.dtype.kind in "UST" for values in labels.values()):
        empty = any(not values.size for values in labels.values())
        return (labels, class_names) if class_names or empty else _from_zero(where, labels, least)
    labels = {part: values.astype(str) for part, values in labels.items()}
    names = class_names or tuple(np.unique(np.concatenate([v.ravel() for v in labels.values()])).tolist())
    number = {name: place for place, name in enumerate(names)}
    for part, values in labels.items():
        strange = [label for label in np.unique(values).tolist() if label not in number]
        if strange:
            raise DataError(f"{where}: {part} label {strange[0]!r} is none of {', '.join(names)}")
        labels[part] = np.array([number[label] for label in values.ravel().tolist()], np.int64)
    return labels, names


def _from_zero(
    where: str, labels: dict[str, NDArray[Any]], least: int
) -> tuple[dict[str, NDArray[Any]], tuple[str, ...]]:
    """Labels of a data set whose smallest is not 0, numbered from 0; all others as they are, and without names."""
    whole = {part: _labels(f"{where}, {part} part", values) for part, values in labels.items()}
    occurring = np.unique(np.concatenate(list(whole.values())))
    if occurring[0] == 0 or len(occurring) < least:
        return labels, ()
    return {part: np.searchsorted(occurring, values) for part, values in whole.items()}, texts(occurring)


MOST_CLASSES = 100
"""So many different numbers with a decimal point are still taken for classes."""


def count_classes(where: str, train: Sequence[Samples], test: Samples | None = None) -> int:
    """How many classes these samples have together: the largest label + 1. Training samples must have two."""
    seen = np.unique(np.concatenate([part.y.numpy() for part in train]))
    if len(seen) == 1:
        raise DataError(f"{where}: all training samples have label {seen[0]}; at least two classes are needed")
    highest = max(int(seen[-1]), -1 if test is None else int(test.y.max()))
    return len(indices(where, highest, sum(map(len, train))))


def indices(where: str, highest: int, samples: int) -> tuple[str, ...]:
    """The names of classes that are known by their numbers alone, 0 up to the highest."""
    if highest >= max(1000, samples):
        raise DataError(f"{where}: label {highest} is too large; number the classes 0, 1, 2, …")
    return tuple(map(str, range(highest + 1)))


def site_numbers(where: str, arrays: Arrays, train: int, test: int | None) -> Sites | None:
    """Which site each sample is of, where the arrays say so: sites that occur, in the order of their names."""
    if "site_train" not in arrays:
        return None
    given = {part: _named(f"{where}, {part} part", "site", arrays[f"site_{part}"]) for part in ("train", "test")
             if f"site_{part}" in arrays}  # fmt: skip
    for part, wanted in (("train", train), ("test", test)):
        if part in given and given[part].shape != (wanted,):
            raise DataError(f"{where}: site_{part} has shape {given[part].shape}; must be one site for each sample")
    names = texts(arrays.get("site_names"))
    every = np.unique(np.concatenate(list(given.values())))
    if names and every.dtype.kind in "iu" and (every.min() < 0 or every.max() >= len(names)):
        raise DataError(f"{where}: site {every.max()} found, but there are {len(names)} site_names")
    titles = tuple(names[int(s)] if names and every.dtype.kind in "iu" else str(s) for s in every.tolist())
    places = {part: np.searchsorted(every, values).astype(np.int64) for part, values in given.items()}
    return Sites(titles, places["train"], places.get("test"))


def _named(where: str, what: str, value: Any) -> NDArray[Any]:
    """Labels or sites as an array: Python's texts as texts, and one that is missing refused."""
    array = as_array(where, "y" if what == "label" else what, value)
    mixed = isinstance(value, list | tuple) and array.ndim == 1 and array.dtype.kind in "US"
    if array.dtype != object and not mixed:
        if what == "site" and array.dtype.kind == "f" and np.isnan(array).any():
            raise _missing(where, what, np.isnan(array))
        return array
    values = list(value) if mixed else array.ravel().tolist()
    gaps = np.array([not isinstance(v, str) and str(v) in ("None", "nan", "NaT", "<NA>") for v in values], bool)
    if gaps.any():
        raise _missing(where, what, gaps)
    others = [row for row, v in enumerate(values) if not isinstance(v, str)]
    if mixed or not others:
        return array.astype(str)
    if len(others) < len(values):
        raise DataError(f"{where}: {what} {values[others[0]]!r} of sample {others[0]} is no text, as others are")
    return np.array(values).reshape(array.shape)


def _missing(where: str, what: str, gaps: NDArray[np.bool_]) -> DataError:
    return DataError(f"{where}: sample {first_row(gaps)} has no {what} ({int(gaps.sum()):,} have none)")


def _labels(where: str, y: Any) -> NDArray[np.int64]:
    array = _named(where, "label", y)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim == 2:
        raise DataError(
            f"{where}: y has shape {array.shape}; must be one class number a sample (several labels are not supported)"
        )
    if array.ndim != 1:
        raise DataError(f"{where}: y has shape {array.shape}; must be one class number a sample")
    if array.size == 0:
        raise DataError(f"{where}: empty, no labels")
    if array.dtype.kind not in "biuf":
        raise DataError(f"{where}: labels are of type {array.dtype}; must be whole numbers ≥ 0")
    wrong = ~(np.isfinite(array) & (array >= 0) & (array == np.floor(array)))
    if wrong.any():
        broken = " (regression is not supported)" if np.isfinite(array[wrong][0]) and array[wrong][0] % 1 else ""
        raise DataError(
            f"{where}: label {array[wrong][0]} of sample {first_row(wrong)}; must be a whole number ≥ 0{broken}"
        )
    if array.dtype.kind == "f" and (different := len(np.unique(array))) > MOST_CLASSES:
        raise DataError(
            f"{where}: y holds {different} different decimal numbers: a quantity, not classes (regression is not "
            "supported); if they are classes, give them as whole numbers"
        )
    return writable(array.astype(np.int64))


def _dtype(part: Samples) -> str:
    return str(part.x.dtype).removeprefix("torch.")


def form(part: Samples) -> str:
    """What must agree between parts: type and shape of what is stored."""
    return f"{_dtype(part)} {sides(tuple(part.x.shape[1:]))}"
