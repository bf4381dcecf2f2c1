"""A paper's claims as statements over the cells of its table, as its preset's `[[claims]]` make them.

A claim names rows, columns and metrics, and how they relate; `experiment.judging` compares them seed by seed. A claim
of several statements: `every` holds where all hold, `most` where more than half hold.
"""

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from fedstill.core.errors import UsageError, unknown
from fedstill.experiment.reproduce import named

RELATIONS = ("better", "top", "grows", "rises", "is", "reaches")
OVER_COLUMNS = ("grows", "rises")
"""Relations between columns."""
WITH_VALUE = ("is", "reaches")
"""Relations to a value: one seed refutes them."""
_KEYS = {"text", "left", "right", "relation", "metrics", "columns", "hold", "places", "value", "margin", "ours"}


@dataclass(frozen=True)
class Claim:
    """What a paper says of its table.

    `better`: each of `left` is better than each of `right`, in each column and metric; with a `margin`, better than
    `right` less the margin, which is how a paper's "only slightly worse" is tested; with the same rows on both sides
    each of them is compared with every other, which is how "comparable" is tested. `top`: one of `left`, the same in
    every seed, is among the first `places`. `grows`: `left` is further ahead of `right` in the last column than in
    each one before it. `rises`: `left` is better in the last column than in each one before it. `is`: the metric of
    `left` is `value` in every seed; `reaches`: it is as good or better.
    """

    text: str
    left: tuple[str, ...]
    right: tuple[str, ...]
    relation: str
    metrics: tuple[str, ...]
    columns: tuple[str, ...]
    hold: str
    places: int
    value: float | None
    margin: float = 0.0
    """How much worse `left` may be, in the metric's raw unit: 0.02 is two points where tables show %."""
    ours: bool = False
    """This project's own statement: the paper does not make it."""
    shown: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Columns with metrics of their own: there the claim is about these alone."""

    @property
    def of_one_difference(self) -> bool:
        """Whether each of its statements is one difference by seed: not a value, nor one of several rows."""
        return self.relation not in WITH_VALUE and (self.relation != "top" or len(self.left) == len(self.right) == 1)

    def about(self, metric: str) -> tuple[str, ...]:
        """The columns that show this metric."""
        return tuple(column for column in self.columns if metric in self.shown.get(column, (metric,)))

    def within(self, patterns: Sequence[str]) -> "Claim | None":
        """The claim of the columns that are named alone (none named: all), and says so; None where it has none."""
        kept = tuple(column for column in self.columns if named(column, patterns))
        if kept == self.columns:
            return self
        if not kept or self.relation in OVER_COLUMNS:
            return None
        used = [pattern for pattern in patterns if any(named(column, [pattern]) for column in kept)]
        return replace(self, text=f"{self.text} ({'; '.join(used)})", columns=kept)


def claims(name: str, content: Mapping[str, Any]) -> list[Claim]:
    """A preset's claims, checked: every label and metric is one of the table."""
    rows = [row["label"] for row in content["rows"]]
    columns = [column["label"] for column in content["columns"]]
    usual = list(content["metrics"])
    known = {metric for column in content["columns"] for metric in column.get("metrics", usual)}
    own = {column["label"]: tuple(column["metrics"]) for column in content["columns"] if "metrics" in column}
    return [replace(_claim(name, entry, rows, columns, usual, known), shown=own) for entry in content.get("claims", [])]


def narrowed(wanted: Sequence[Claim], rows: Sequence[str] = (), columns: Sequence[str] = ()) -> list[Claim]:
    """What is claimed of these rows, in these columns: the same for a page and for the command beside it.

    Rows choose the claims whose left sides are all named, whatever they are compared with; columns are those that a
    claim is then about (`Claim.within`). * and ? are allowed, case does not matter; none named: all.
    """
    chosen = [claim for claim in wanted if all(named(row, rows) for row in claim.left)]
    return [claim for whole in chosen if (claim := whole.within(columns)) is not None]


def _claim(
    name: str,
    entry: Mapping[str, Any],
    rows: Sequence[str],
    columns: Sequence[str],
    metrics: Sequence[str],
    known: Set[str],
) -> Claim:
    for key in entry:
        if key not in _KEYS:
            raise unknown(f"key of a claim of {name}", key, _KEYS)
    relation = entry.get("relation", "better")
    if relation not in RELATIONS:
        raise unknown(f"relation in a claim of {name}", relation, RELATIONS)
    if entry.get("hold", "every") not in ("every", "most"):
        raise UsageError(f"{name}: hold = {entry['hold']!r}: must be every or most")
    left = _labels(name, _texts(name, entry, "left"), rows)
    right = _labels(name, _texts(name, entry, "right"), rows)
    if relation != "better" or right != left or len(left) == 1:
        right = tuple(label for label in right if label not in left)
    chosen = _labels(name, _texts(name, entry, "columns", ["*"]), columns)
    asked = tuple(_texts(name, entry, "metrics", metrics))
    for metric in asked:
        if metric not in known:
            raise unknown(f"metric in a claim of {name}", metric, known)
    wrong = _misfit(relation, left, right, chosen, entry, asked)
    if wrong:
        raise UsageError(f"{name}, claim {entry.get('text', '')!r}: {wrong}")
    text = " ".join(str(entry["text"]).split())
    hold, places = entry.get("hold", "every"), int(entry.get("places", 1))
    value, margin = entry.get("value"), float(entry.get("margin", 0.0))
    return Claim(text, left, right, relation, asked, chosen, hold, places, value, margin, bool(entry.get("ours")))


def _texts(name: str, entry: Mapping[str, Any], key: str, usual: Sequence[str] = ()) -> list[str]:
    """What a claim says of a key, as a list: one text, or several; `usual` where it says nothing."""
    said = entry.get(key, usual)
    texts = [said] if isinstance(said, str) else said
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise UsageError(
            f"{name}, claim {entry.get('text', '')!r}: {key} = {said!r}: must be a text or a list of texts"
        )
    return list(texts)


def _misfit(
    relation: str,
    left: Sequence[str],
    right: Sequence[str],
    columns: Sequence[str],
    entry: Mapping[str, Any],
    metrics: Sequence[str],
) -> str:
    if not entry.get("text") or not left:
        return "needs a text and left"
    if wrong := _misfit_number(relation, entry, metrics):
        return wrong
    if relation in WITH_VALUE:
        return "" if "value" in entry else f"relation {relation}: needs a value"
    if relation == "top" and int(entry.get("places", 1)) > len(right) > 0:
        return f"places = {entry['places']}: there are {len(right)} on the right"
    if relation in OVER_COLUMNS and len(columns) < 2:
        return f"relation {relation}: needs two columns or more"
    return "" if right or relation == "rises" else f"relation {relation}: needs right"


def _misfit_number(relation: str, entry: Mapping[str, Any], metrics: Sequence[str]) -> str:
    margin, places, value = entry.get("margin", 0.0), entry.get("places", 1), entry.get("value", 0.0)
    if type(margin) not in (int, float) or not 0 <= margin < math.inf:
        return f"margin = {margin!r}: must be a number ≥ 0"
    if type(places) is not int or places < 1:
        return f"places = {places!r}: must be a whole number ≥ 1"
    if type(value) not in (int, float) or not math.isfinite(value):
        return f"value = {value!r}: must be a number"
    if "margin" not in entry:
        return ""
    if relation != "better":
        return f"relation {relation}: takes no margin"
    targets = [metric for metric in metrics if "_to:" in metric or "speedup" in metric]
    return f"margin: has no meaning beside {targets[0]}, a target that may not be reached" if targets else ""


def _labels(name: str, patterns: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """The labels that are wanted, in the table's order; * and ? are allowed."""
    for pattern in patterns:
        if not any(fnmatchcase(label, pattern) for label in known):
            raise unknown(f"label in a claim of {name}", pattern, known)
    return tuple(label for label in known if any(fnmatchcase(label, pattern) for pattern in patterns))
