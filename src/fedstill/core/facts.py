"""Facts that follow from what a method tells of a round and from what only an experimenter knows.

A method's `facts` are what its server knows. How good they are can often be said only by somebody who knows more: who
was malicious, or which labels each client has. Whoever tells such facts declares beside them what follows:

    >>> @derives("guess")
    ... def hits(facts, truth):
    ...     return {"hits": len(set(facts["guess"]) & set(truth.malicious))}
    >>> row = {"facts": {"guess": [1, 2]}}
    >>> derive(row, Truth(malicious=(2, 3))); row["facts"]["hits"]
    1
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np


@dataclass(frozen=True)
class Truth:
    """What an experimenter knows and no party of a federation does."""

    malicious: tuple[int, ...] = ()
    counts: np.ndarray[Any, Any] | None = None
    """Training samples, clients × classes; None where the data are elsewhere."""


Derivation = Callable[[Mapping[str, Any], Truth], Mapping[str, Any]]
_derivations: list[tuple[tuple[str, ...], str, Derivation]] = []


def derives(*needs: str, place: Literal["facts", "row"] = "facts") -> Callable[[Derivation], Derivation]:
    """Declare a function of facts and truth, for every round whose facts have all of `needs`.

    What it returns joins the round's facts, or with `place = "row"` stands beside them in the round's line.
    """

    def add(derivation: Derivation) -> Derivation:
        _derivations.append((needs, place, derivation))
        return derivation

    return add


def derive(row: dict[str, Any], truth: Truth) -> None:
    """Add to a round's line everything that follows from its facts."""
    for needs, place, derivation in _derivations:
        if all(name in row["facts"] for name in needs):
            (row if place == "row" else row["facts"]).update(derivation(row["facts"], truth))
