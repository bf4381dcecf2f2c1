"""The signature of a run: everything that using its models needs, so that nobody who uses them needs the data.

It is written into the run as `signature.json`. A kind of data joins by being a `Kind`: `Kind.plain()` is its own
description (shape, normalisation, columns, vocabulary …), `kind_of` reads it back, and `Kind.inputs` turns stored
samples into what the model takes. Nothing here knows which kinds there are, except that images may be brought to the
size of a model.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch import nn

from fedstill.core.errors import DataError, RunError, UsageError
from fedstill.core.kind import Kind, kind_of
from fedstill.core.record import write
from fedstill.core.value import build
from fedstill.data import Dataset
from fedstill.data.reading import Reading

FILE = "signature.json"
ROLES = ("label", "time", "window", "site", "text", "ignore", "categorical", "categories")
"""What decides how rows without labels are read, of all that was said of the run's own table."""


@dataclass(frozen=True)
class Signature:
    """What a model of the run takes and gives, and how it is built."""

    kind: Mapping[str, Any]
    """Of the samples as they were brought, as `Kind.plain` describes it."""
    dtype: str
    """How they were stored: uint8, float32, int32 …"""
    low: float | None
    high: float | None
    """Of images, the lowest and highest number in training: the units of raw inputs. None for anything else, which
    needs neither, and where each would be one person's value."""
    class_names: tuple[str, ...]
    recipes: tuple[Mapping[str, Any], ...]
    """Every different model: `{"name": …}`, `{"factory": "package.module:factory"}`, or `{"object": …,
    "parameters": …}` for a module that came as an object, whose code nobody else has."""
    of: tuple[int, ...]
    """Which recipe every client has, and last the server."""
    sizes: tuple[int, ...]
    """Training samples of every client."""
    reading: Mapping[str, Any] = field(default_factory=dict)
    """How rows are read: settings of a `Reading`, of those in `ROLES`; empty where the data were no table."""

    def __post_init__(self) -> None:
        if self.kind["name"] != "image":
            object.__setattr__(self, "low", None)
            object.__setattr__(self, "high", None)

    @classmethod
    def describe(cls, dataset: Dataset, specs: Sequence[Any], sizes: Sequence[int]) -> "Signature":
        """The signature of a run with these data, models (of every client, and last the server's) and clients."""
        x = dataset.train.x
        low, high = (float(x.min()), float(x.max())) if len(x) else (0.0, 0.0)
        different = list({_key(spec): spec for spec in specs}.values())
        order = {_key(spec): place for place, spec in enumerate(different)}
        return cls(
            dataset.kind.plain(),
            str(x.dtype).removeprefix("torch."),
            low,
            high,
            dataset.class_names,
            tuple(recipe_of(spec) for spec in different),
            tuple(order[_key(spec)] for spec in specs),
            tuple(sizes),
        )

    @property
    def brought(self) -> Kind:
        """The kind of raw inputs."""
        return kind_of(self.kind)

    @property
    def stored(self) -> torch.dtype:
        """The type of raw inputs."""
        return {"uint8": torch.uint8, "int32": torch.int32, "int64": torch.int64}.get(self.dtype, torch.float32)

    @property
    def rows(self) -> Reading:
        """How a file of rows is read for the run's models."""
        return build(Reading, self.reading)

    def specs(self, path: Path, model: Any = None) -> tuple[Any, ...]:
        """The model of every client, and last the server's; `model` stands in for one that came as an object."""
        for recipe in self.recipes:
            if "object" in recipe and model is None:
                raise UsageError(
                    f"{path}: its model was given as an object ({recipe['object']}), so its code is needed: "
                    f"fedstill.load_model({str(path)!r}, model=...)"
                )
        known = [model if "object" in r else r.get("name") or r["factory"] for r in self.recipes]
        return tuple(known[place] for place in self.of)

    def save(self, folder: Path) -> None:
        """Write it into a run's folder."""
        write(folder / FILE, (json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n").encode())

    @classmethod
    def read(cls, folder: Path) -> "Signature":
        """The signature of the run, or of the published model, in this folder."""
        if not (folder / FILE).exists():
            raise DataError(f"{folder}: has no {FILE}, which says what its models take and give")
        try:
            fields: dict[str, Any] = json.loads((folder / FILE).read_text())
            fields.update({name: tuple(value) for name, value in fields.items() if isinstance(value, list)})
            return cls(**fields)
        except (ValueError, TypeError) as error:
            raise RunError(f"{folder / FILE}: damaged ({error})") from None


def roles(settings: Mapping[str, Any] | None) -> dict[str, Any]:
    """Of a run's settings of its table, those that rows without labels are read by.

    >>> roles({"name": "columns", "time": "t", "window": 4, "site": None, "ignore": [], "resize": 28})
    {'time': 't', 'window': 4}
    """
    return {name: settings[name] for name in ROLES if settings.get(name)} if settings else {}


def _key(spec: Any) -> Any:
    return spec if isinstance(spec, str) else id(spec)


def recipe_of(spec: Any) -> dict[str, Any]:
    """How to build a model again."""
    if isinstance(spec, str):
        return {"factory": spec} if ":" in spec else {"name": spec}
    kind = spec if isinstance(spec, type | FunctionType) else type(spec)
    recipe: dict[str, Any] = {"object": f"{kind.__module__}.{kind.__qualname__}"}
    if isinstance(spec, nn.Module):
        recipe["parameters"] = {name: list(value.shape) for name, value in spec.state_dict().items()}
    return recipe
