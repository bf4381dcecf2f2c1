"""A grid of settings, every point over the same seeds: the machinery of `reproduce` without a paper."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedstill.core.errors import FedstillError, UsageError
from fedstill.experiment import batch
from fedstill.experiment.batch import Job
from fedstill.experiment.config import experiment


@dataclass(frozen=True)
class Point:
    """One point of the grid: its values, and a run for each seed."""

    values: Mapping[str, str]
    jobs: tuple[Job, ...]

    @property
    def label(self) -> str:
        """`gamma=0.1, alpha=1`; without values, the settings as they were given."""
        return ", ".join(f"{name}={value}" for name, value in self.values.items()) or "as given"


def axes(grids: Sequence[str]) -> dict[str, list[str]]:
    """`name=a,b,c` each; commas inside brackets or quotes do not part values.

    >>> axes(["gamma=0.1,1", "partition={name = 'shards', classes = 2},iid"])
    {'gamma': ['0.1', '1'], 'partition': ["{name = 'shards', classes = 2}", 'iid']}
    """
    axes: dict[str, list[str]] = {}
    for grid in grids:
        name, equals, values = grid.partition("=")
        listed = _parted(values)
        if not equals or not name or not all(listed):
            raise UsageError(f"--grid {grid!r}: must be name=value,value,…")
        if name == "seed":
            raise UsageError(f"--grid {grid!r}: every point has the same seeds; say how many with --seeds")
        if name in axes:
            raise UsageError(f"--grid {name}: given twice")
        if len(set(listed)) < len(listed):
            raise UsageError(f"--grid {grid!r}: a value comes twice")
        axes[name] = listed
    if not axes:
        raise UsageError("no --grid: say what to vary, like --grid gamma=0.1,1,10")
    return axes


def _parted(values: str) -> list[str]:
    """The values between commas that stand in no bracket and no quotes.

    >>> _parted("[], [{name='a', share=1}, {name='b, c'}]")
    ['[]', "[{name='a', share=1}, {name='b, c'}]"]
    """
    parts, depth, quote = [""], 0, ""
    for sign in values:
        if quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif sign in "[]{}":
            depth += 1 if sign in "[{" else -1
        if sign == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += sign
    return [part.strip() for part in parts]


def points(
    plans: Sequence[tuple[Mapping[str, str], Mapping[str, Any]]], seeds: Iterable[int], out: Path
) -> list[Point]:
    """The runs of every point.

    Args:
        plans: each point's values, and its settings with these applied.
        seeds: a run for each of these.
        out: where the runs' folders go.
    """
    seeds = tuple(seeds)
    points = []
    for values, settings in plans:
        try:
            made = [experiment({**settings, "seed": seed}) for seed in seeds]
        except FedstillError as error:
            raise UsageError(f"{', '.join(f'{k}={v}' for k, v in values.items())}: {error}") from None
        points.append(Point(values, tuple(batch.job(one, out) for one in made)))
    return points


def combinations(varied: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """Every combination of values, the last name changing fastest.

    >>> combinations({"a": ["1", "2"], "b": ["x"]})
    [{'a': '1', 'b': 'x'}, {'a': '2', 'b': 'x'}]
    """
    return [dict(zip(varied, values, strict=True)) for values in itertools.product(*varied.values())]
