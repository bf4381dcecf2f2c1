"""Claims judged over a table's numbers, each by a test over the seeds, never by eye.

A statement compares cells seed by seed. Its differences, turned so that positive is as claimed, are tested by a
one-sided paired t-test at 5 %: *held* where they are above zero, *not held* where they are below zero (the contrary is
shown), *not decided* otherwise or with fewer than two seeds. With three seeds a difference must be about three times
its standard error to be decided; a test of so few numbers rests on their being roughly normal, and says nothing of
other splits or data. Differences that are all equal, but for the rounding of records, have no spread to test by: then
their signs alone count (`_without_spread`). A target that was not reached is worse than any that was. What is printed
beside a verdict is the p-value that decided, and a 90 % interval, which fits one-sided tests at 5 %.

A claim of several statements: `every` holds where all hold, and fails where one fails after Bonferroni's correction for
their number; `most` holds where more than half hold, and fails where at least half fail.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from statistics import fmean, stdev
from typing import Any, Literal

from fedstill.experiment.claims import WITH_VALUE, Claim
from fedstill.experiment.records import DIGITS
from fedstill.experiment.reproduce import Number
from fedstill.experiment.table_metrics import Beyond, described

LEVEL = 0.05
Verdict = Literal["held", "not held", "not decided"]


@dataclass(frozen=True)
class Statement:
    """One comparison: its differences over seeds (positive is as claimed), their interval, and the two p-values."""

    text: str
    differences: tuple[float, ...]
    mean: float | None
    interval: tuple[float, float] | None
    """90 % confidence interval of the mean difference: it leaves out zero where one of the two tests decides.

    None where there is no spread to make one of, and where the statement is of several rows (`_one_of`, `_placed`).
    """
    p: float | None
    """Of differences like these, or further above zero, were there none."""
    contrary: float | None
    """The same, below zero."""
    factor: float = 1.0
    unit: str = ""
    """As its metric is shown: a difference times `factor`, in `unit`."""

    @property
    def verdict(self) -> Verdict:
        """By the two one-sided tests."""
        if self.p is None or self.contrary is None:
            return "not decided"
        return "held" if self.p < LEVEL else "not held" if self.contrary < LEVEL else "not decided"

    @property
    def measured(self) -> str:
        """The difference in words, in the unit of tables, with its interval where there is one."""
        if self.interval is None:
            return f"difference {self._shown(self.mean or 0.0)} in every seed"
        level = f"{100 * (1 - 2 * LEVEL):.0f} %"
        return f"mean difference {self._shown(self.mean or 0.0)}, {level} interval {self._shown(*self.interval)}"

    def _shown(self, *values: float) -> str:
        """One value, or both ends of an interval, with the unit.

        >>> by_accuracy = Statement("x", (), None, None, None, None, 100.0, "%")
        >>> by_accuracy._shown(0.02), replace(by_accuracy, factor=1e3, unit="10⁻³")._shown(-0.002, 0.001)
        ('2 points', '[-2, 1] · 10⁻³')
        """
        scaled = [self.factor * value for value in values]
        texts = [f"{value if abs(value) > 1e-4 else 0.0:.4g}" for value in scaled]
        text = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
        unit = {"%": "points", "10⁻³": "· 10⁻³"}.get(self.unit, self.unit)
        return f"{text} {unit}" if unit else text

    @property
    def tested(self) -> str:
        """The p-value in words: that of the contrary where the contrary decided, else the statement's own."""
        if self.p is None or self.contrary is None:
            return "not tested"
        if self.verdict == "not held":
            return _p_value(self.contrary, "the contrary: p")
        return _p_value(self.p, "p")


def _p_value(p: float, title: str) -> str:
    """A p-value with its title; only what the settings decide, such as bytes, has one of 0."""
    return f"{title} = {p:.3g}" if p > 0 else "counted"


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
            return _p_value(_refuted(self.statements), f"the contrary: {'corrected ' * several}p")
        return "" if self.p is None else _p_value(self.p, "largest p" if several else "p")

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
        statements, theirs = tuple(_statements(claim, cells)), tuple(_statements(claim, printed, _by_sign))
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
                off = tuple(_off(values[seed], claim.value or 0.0, better) for seed in sorted(values))
                yield _valued(f"{row}, {column}, {metric}", off, described(metric).counted)
        elif claim.relation == "top":
            every = signed((*claim.left, *claim.right), column)
            rivals = every[len(claim.left) :]
            text = f"first {claim.places}, {column}, {metric}"
            against = [
                [test(text, _less(row, rival), _rounding(row, rival)) for rival in rivals]
                for row in every[: len(claim.left)]
            ]
            yield _one_of([_placed(each, claim.places) for each in against])
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


def _placed(against: Sequence[Statement], places: int) -> Statement:
    """A row is among the first `places`, from its comparison with each rival; shown is the rival in the last of them.

    It is where it beats all rivals but `places - 1`, and is not where as many as `places` of them beat it. Rivals are
    the same in every seed: the best of each seed would be a maximum over noise. Which rivals they are is not known
    beforehand, so p-values are multiplied by the number of choices (Bonferroni).

    By hand, first of three: the largest p; of the contrary three times the least. Among the first two: three times the
    second largest; of the contrary, for three pairs of rivals, three times the second least.

        >>> rivals = [Statement("x", (m, m), m, None, p, 1 - p) for m, p in ((3.0, 0.01), (2.0, 0.02), (1.0, 0.04))]
        >>> [(s.mean, round(s.p, 2), round(s.contrary, 2)) for s in (_placed(rivals, 1), _placed(rivals, 2))]
        [(1.0, 0.04, 1.0), (2.0, 0.06, 1.0)]
    """
    if len(against) == 1:
        return against[0]
    last = sorted(against, key=lambda s: math.inf if s.mean is None else s.mean)[places - 1]
    ps = sorted(s.p for s in against if s.p is not None)
    contraries = sorted(s.contrary for s in against if s.contrary is not None)
    if len(ps) < len(against):
        return replace(last, interval=None, p=None, contrary=None)
    p = min(1.0, math.comb(len(ps), places - 1) * ps[-places])
    contrary = min(1.0, math.comb(len(ps), places) * contraries[places - 1])
    return replace(last, interval=None, p=p, contrary=contrary)


def _one_of(rows: Sequence[Statement]) -> Statement:
    """One statement of several rows': it holds where one of them does, and does not where none of them does.

    The row is the same in every seed: the best of each seed would be a maximum over noise. So many tests at once need
    Bonferroni's correction, while all of them failing needs none.

    By hand, of two rows: p = 2 · .02, and the larger of both p-values of the contrary.

        >>> one, other = (Statement("x", (1.0, 2.0), 1.5, None, p, 1 - p) for p in (0.02, 0.5))
        >>> (found := _one_of([one, other])).p, found.contrary, found.verdict
        (0.04, 0.98, 'held')
    """
    if len(rows) == 1:
        return rows[0]
    best = min(rows, key=lambda row: (math.inf if row.p is None else row.p, -len(row.differences)))
    p = None if best.p is None else min(1.0, len(rows) * best.p)
    contrary = None if p is None else max(1.0 if row.contrary is None else row.contrary for row in rows)
    return replace(best, interval=None, p=p, contrary=contrary)


def compared(text: str, differences: Mapping[int, float], rounding: float = 0.0, counted: bool = False) -> Statement:
    """A statement from its differences by seed: one-sided paired t-tests both ways, and the 90 % interval.

    `rounding`: no further apart they count as equal. `counted` are numbers that the settings decide, such as bytes:
    nothing of them is rounded, and differences that are all the same are certain.

    By hand, for differences 1, 2, 3: mean 2, standard error 1/√3, t = 3.464 with 2 degrees of freedom.

        >>> found = compared("x", {1: 1.0, 2: 2.0, 3: 3.0})
        >>> round(found.p, 4), found.verdict, [round(end, 3) for end in found.interval]
        (0.0371, 'held', [0.314, 3.686])
    """
    from scipy import stats

    values = [differences[seed] for seed in sorted(differences)]
    if len(values) < 2:
        return Statement(text, tuple(values), values[0] if values else None, None, None, None)
    mean, error = fmean(values), stdev(values) / math.sqrt(len(values))
    rounding = max(1e-12, 0.0 if counted else rounding)
    if max(values) - min(values) <= rounding:
        return _without_spread(text, values, mean, counted, rounding)
    known = stats.t(len(values) - 1)
    p, reach = float(known.sf(mean / error)), float(known.ppf(1 - LEVEL)) * error
    contrary = float(known.cdf(mean / error))
    return Statement(text, tuple(values), mean, (mean - reach, mean + reach), p, contrary)


def _without_spread(
    text: str, values: Sequence[float], mean: float, counted: bool, rounding: float = 1e-12
) -> Statement:
    """A statement from differences that are all the same, as those of rounds are where few rounds are examined.

    The t-test would take the grid on which they are measured for certainty, so a sign test is made: were there no
    difference, n seeds would all point one way with a probability of 2⁻ⁿ. Five seeds decide, fewer do not; of two not
    even a p-value is given. What is counted varies with no seed, so three that agree are enough.

        >>> [_without_spread("x", [5.0] * n, 5.0, False).p for n in (2, 3, 5)]
        [None, 0.125, 0.03125]
    """
    if abs(mean) <= rounding / 2:  # a single difference is off by no more
        return Statement(text, tuple(values), mean, None, 0.5, 0.5)
    if len(values) < 3:
        return Statement(text, tuple(values), mean, None, None, None)
    chance = 0.0 if counted else 0.5 ** len(values)
    p, contrary = (chance, 1.0) if mean > 0 else (1.0, chance)
    return Statement(text, tuple(values), mean, None, p, contrary)


def _by_sign(text: str, differences: Mapping[int, float], rounding: float = 0.0) -> Statement:
    """A statement on means that a paper prints: they have no seeds to test by, so it is as claimed or it is not."""
    values = tuple(differences[seed] for seed in sorted(differences))
    if not values:
        return Statement(text, values, None, None, None, None)
    p = 0.5 if abs(values[0]) < 1e-12 else 0.0 if values[0] > 0 else 1.0
    return Statement(text, values, values[0], None, p, 1 - p)


def _valued(text: str, off: tuple[float, ...], counted: bool = False) -> Statement:
    """Is the value what is claimed, in every seed? One seed that is off refutes it.

    One that is not confirms it where it is counted, which no seed varies.
    """
    if not off or (len(off) < 2 and not any(off) and not counted):
        return Statement(text, off, None, None, None, None)
    wrong = any(difference > 1e-9 for difference in off)
    return Statement(text, off, max(off), None, 1.0 if wrong else 0.0, 0.0 if wrong else 1.0)


def _off(value: float | Beyond, wanted: float, better: int) -> float:
    """How far a value is from the one that is claimed; of a target that was not reached, at least 1.

    A value that is better is not off: `better` is 1 where more is, -1 where less is, 0 where it must be the same.

        >>> [_off(value, 6.0, -1) for value in (2.0, 6.0, 7.0, Beyond(5.0, 5))], _off(2.0, 6.0, 0)
        ([0.0, 0.0, 1.0, 1.0], 4.0)
    """
    if isinstance(value, Beyond):
        return max(1.0, abs(value.bound - wanted))
    return max(0.0, better * (wanted - value)) if better else abs(value - wanted)


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
