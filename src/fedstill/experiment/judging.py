"""Claims judged over a table's numbers, each by a test over the seeds, never by eye.

A claim makes statements (`statement.py`), each of which compares cells seed by seed. A target that was not reached is
worse than any that was. What is printed beside a verdict is the p-value that decided, and a 90 % interval, which fits
one-sided tests at 5 %.

A claim of several statements: `every` holds where all hold, and fails where one fails after Bonferroni's correction for
their number; `most` holds where more than half hold, and fails where at least half fail.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

from fedstill.experiment.claims import WITH_VALUE, Claim
from fedstill.experiment.records import DIGITS
from fedstill.experiment.reproduce import Number
from fedstill.experiment.statement import (
    LEVEL,
    Statement,
    Verdict,
    by_sign,
    compared,
    off_by,
    one_of,
    p_value,
    placed,
    valued,
)
from fedstill.experiment.table_metrics import Beyond, described


@dataclass(frozen=True)
class Judgement:
    """A claim with its verdict and the statements it rests on."""

    claim: Claim
    verdict: Verdict
    statements: tuple[Statement, ...]
    paper: Verdict | None = None
    """What the same claim gives on the means the paper prints; None where it prints not all of them."""
    other_samples: bool = False
    """Whether rows that are compared were trained and tested on other samples in the same seed."""

    @property
    def p(self) -> float | None:
        """Of a claim over every statement, the largest p-value; None where there is none, as over most of several."""
        known = [s.p for s in self.statements if s.p is not None]
        by_count = self.claim.hold == "most" and len(self.statements) > 1
        return max(known) if known and len(known) == len(self.statements) and not by_count else None

    @property
    def evidence(self) -> str:
        """A line on what the verdict rests on, on whose samples, and whether the paper's numbers show the contrary."""
        other = "; on other samples (†)" if self.other_samples else ""
        return self._measured + other + ("; not so in the paper's own numbers" if self.paper == "not held" else "")

    @property
    def _measured(self) -> str:
        seeds = {len(s.differences) for s in self.statements}
        if seeds <= {0}:
            return "no record yet"
        count = "–".join(str(n) for n in dict.fromkeys((min(seeds), max(seeds)))) if seeds else "no"
        count += " seed" if count == "1" else " seeds"
        if len(self.statements) == 1 and max(seeds) > 1 and self.claim.of_one_difference:
            (only,) = self.statements
            beyond = "beyond the margin: " if self.claim.margin else ""
            return f"{beyond}{only.measured}, {only.tested}, {count}"
        each = {verdict: sum(s.verdict == verdict for s in self.statements) for verdict in ("held", "not held")}
        counts = f"{each['held']} of {len(self.statements)} held, {each['not held']} not"
        return ", ".join(part for part in (counts, self._tested, count) if part)

    @property
    def _tested(self) -> str:
        """The p-value that a claim over every statement rests on, in words; empty where it rests on counts alone."""
        several = len(self.statements) > 1
        if self.claim.relation in WITH_VALUE or (several and self.claim.hold == "most"):
            return ""
        if self.verdict == "not held":
            return p_value(_refuted(self.statements), f"the contrary: {'corrected ' * several}p")
        return "" if self.p is None else p_value(self.p, "largest p" if several else "p")

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "claim": self.claim.text,
            "verdict": self.verdict,
            "paper": self.paper,
            "other_samples": self.other_samples,
            "p": self.p,
            "statements": [
                {"text": s.text, "verdict": s.verdict, "mean": s.mean, "interval": s.interval, "p": s.p,
                 "contrary": s.contrary, "differences": list(s.differences)}
                for s in self.statements
            ],
        }  # fmt: skip


Values = Mapping[int, float | Beyond]
"""Seed → value."""
Cells = Mapping[tuple[str, str, str], Values]
"""Row, column, metric → its values."""
Test = Callable[[str, Mapping[int, float], float], Statement]
"""A statement's text, its differences by seed and how far rounding may spread them (`_rounding`) → the statement."""


def judged(wanted: Sequence[Claim], numbers: Sequence[Number]) -> list[Judgement]:
    """Every claim with its verdict over these numbers."""
    cells = {(n.row, n.column, n.metric): _values(n) for n in numbers}
    printed = {(n.row, n.column, n.metric): _printed(n) for n in numbers}
    splits = {(n.row, n.column): n.splits for n in numbers}
    judgements = []
    for claim in wanted:
        statements, theirs = tuple(_statements(claim, cells)), tuple(_statements(claim, printed, by_sign))
        paper = _verdict(claim, theirs) if theirs and all(s.p is not None for s in theirs) else None
        other = _other_samples(claim, splits)
        judgements.append(Judgement(claim, _verdict(claim, statements), statements, paper, other))
    return judgements


def _other_samples(claim: Claim, splits: Mapping[tuple[str, str], Mapping[int, str]]) -> bool:
    """Whether the left and the right of a claim have another split in the same column and seed."""
    none: Mapping[int, str] = {}
    for row, rival, column in product(claim.left, claim.right, claim.columns):
        its, rivals = splits.get((row, column), none), splits.get((rival, column), none)
        if any(its[seed] != rivals[seed] for seed in its if seed in rivals):
            return True
    return False


def _printed(number: Number) -> Values:
    """The paper's mean, as if two seeds had given it; ">60" rounds and a speed-up of "<1" are targets not reached."""
    value: float | Beyond | None = number.paper_mean
    if isinstance(number.paper, str) and (bound := re.fullmatch(r"[<>] ?(\d+(?:\.\d+)?)", number.paper)):
        value = Beyond(float(bound[1]), 1)
    return {} if value is None else {1: value, 2: value}


def _values(number: Number) -> Values:
    """A cell's values by seed."""
    pairs = zip(number.seeds, number.ours, strict=False)
    return {seed: value for seed, value in pairs if isinstance(value, float | Beyond)}


def _signed(cells: Sequence[Values], sign: int) -> list[dict[int, float]]:
    """The values of cells that are compared, turned so that more is better, with a number for targets not reached.

    A target that was not reached is worse than anything that was, and no worse than another that was not. In each seed
    it counts as reached one round after the end: of the run, or of the slowest here if that is later.

    By hand, in seconds: A reached it after 800; B did not in 10 rounds that took 400: 800 · 11/10.

        >>> _signed([{1: 800.0}, {1: Beyond(400.0, 10)}], -1)
        [{1: -800.0}, {1: -880.0}]
    """
    signed: list[dict[int, float]] = [{} for _ in cells]
    for seed in sorted({seed for cell in cells for seed in cell}):
        there = [cell[seed] for cell in cells if seed in cell]
        rounds = max((value.rounds for value in there if isinstance(value, Beyond)), default=1)
        known = [value.bound if isinstance(value, Beyond) else value for value in there]
        unreached = max(known) * (rounds + 1) / rounds if sign < 0 else min(known) * rounds / (rounds + 1)
        for cell, mine in zip(cells, signed, strict=True):
            if seed in cell:
                value = cell[seed]
                mine[seed] = sign * (unreached if isinstance(value, Beyond) else value)
    return signed


def _statements(claim: Claim, cells: Cells, judge: Test | None = None) -> Iterator[Statement]:
    for metric in claim.metrics:
        shown = described(metric)
        for statement in _of_metric(claim, metric, cells, judge or partial(compared, counted=shown.counted)):
            yield replace(statement, factor=shown.factor, unit=shown.unit)


def _of_metric(claim: Claim, metric: str, cells: Cells, test: Test) -> Iterator[Statement]:
    sign = described(metric).direction

    def signed(rows: Sequence[str], column: str) -> list[dict[int, float]]:
        return _signed([cells.get((row, column, metric), {}) for row in rows], sign)

    columns = claim.about(metric)
    if claim.relation == "grows":
        for first, pair in product(columns[:-1], product(claim.left, claim.right)):
            before, after = (signed(pair, column) for column in (first, columns[-1]))
            text = f"{pair[0]} over {pair[1]}, {first} → {columns[-1]}, {metric}"
            yield test(text, _less(_less(*after), _less(*before)), _rounding(*before, *after))
        return
    if claim.relation == "rises":
        for first, row in product(columns[:-1], claim.left):
            ends = _signed([cells.get((row, column, metric), {}) for column in (columns[-1], first)], sign)
            yield test(f"{row}, {first} → {columns[-1]}, {metric}", _less(*ends), _rounding(*ends))
        return
    for column in columns:
        if claim.relation in WITH_VALUE:
            for row in claim.left:
                values, better = cells.get((row, column, metric), {}), sign if claim.relation == "reaches" else 0
                off = tuple(off_by(values[seed], claim.value or 0.0, better) for seed in sorted(values))
                yield valued(f"{row}, {column}, {metric}", off, described(metric).counted)
        elif claim.relation == "top":
            every = signed((*claim.left, *claim.right), column)
            rivals = every[len(claim.left) :]
            text = f"first {claim.places}, {column}, {metric}"
            against = [
                [test(text, _less(row, rival), _rounding(row, rival)) for rival in rivals]
                for row in every[: len(claim.left)]
            ]
            yield one_of([placed(each, claim.places) for each in against])
        else:
            for left, right in product(claim.left, claim.right):
                if left != right:
                    both = signed((left, right), column)
                    allowed = {seed: difference + claim.margin for seed, difference in _less(*both).items()}
                    yield test(f"{left} over {right}, {column}, {metric}", allowed, _rounding(*both))


def _less(left: Mapping[int, float], right: Mapping[int, float]) -> dict[int, float]:
    """Left less right, of the seeds that both have."""
    return {seed: left[seed] - right[seed] for seed in left if seed in right}


def _rounding(*cells: Mapping[int, float]) -> float:
    """How far differences over these cells may lie apart although they are equal: records keep six digits of a value.

    By hand: .333333 and .666667 may each be off by half a millionth, up in one seed and down in another.

        >>> _rounding({1: 0.333333}, {1: 0.666667})
        2e-06
    """
    steps = [[10.0 ** (math.floor(math.log10(abs(v))) + 1 - DIGITS) for v in cell.values() if v] for cell in cells]
    return sum(max(each, default=0.0) for each in steps)


def _verdict(claim: Claim, statements: Sequence[Statement]) -> Verdict:
    if not statements:
        return "not decided"
    held = sum(s.verdict == "held" for s in statements)
    if claim.hold == "most":
        failed = sum(s.verdict == "not held" for s in statements)
        return "held" if 2 * held > len(statements) else "not held" if 2 * failed >= len(statements) else "not decided"
    if held == len(statements):
        return "held"
    return "not held" if _refuted(statements) < LEVEL else "not decided"


def _refuted(statements: Sequence[Statement]) -> float:
    """The p-value of the contrary of a claim over every statement: the least of all, by Bonferroni's correction."""
    least = min((s.contrary for s in statements if s.contrary is not None), default=math.inf)
    return least * len(statements)
