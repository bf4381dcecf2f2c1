"""A statement: differences over seeds, and the test that decides whether they are as claimed.

Differences are turned so that positive is as claimed, and tested by a one-sided paired t-test at 5 %: *held* where they
are above zero, *not held* where they are below zero (the contrary is shown), *not decided* otherwise or with fewer than
two seeds. With three seeds a difference must be about three times its standard error to be decided; a test of so few
numbers rests on their being roughly normal, and says nothing of other splits or data. Differences that are all equal,
but for the rounding of records, have no spread to test by: then their signs alone count (`_without_spread`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Literal

from fedstill.experiment.table_metrics import Beyond

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

    None where there is no spread to make one of, and where the statement is of several rows (`one_of`, `placed`).
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
            return p_value(self.contrary, "the contrary: p")
        return p_value(self.p, "p")


def p_value(p: float, title: str) -> str:
    """A p-value with its title; only what the settings decide, such as bytes, has one of 0."""
    return f"{title} = {p:.3g}" if p > 0 else "counted"


def placed(against: Sequence[Statement], places: int) -> Statement:
    """A row is among the first `places`, from its comparison with each rival; shown is the rival in the last of them.

    It is where it beats all rivals but `places - 1`, and is not where as many as `places` of them beat it. Rivals are
    the same in every seed: the best of each seed would be a maximum over noise. Which rivals they are is not known
    beforehand, so p-values are multiplied by the number of choices (Bonferroni).

    By hand, first of three: the largest p; of the contrary three times the least. Among the first two: three times the
    second largest; of the contrary, for three pairs of rivals, three times the second least.

        >>> rivals = [Statement("x", (m, m), m, None, p, 1 - p) for m, p in ((3.0, 0.01), (2.0, 0.02), (1.0, 0.04))]
        >>> [(s.mean, round(s.p, 2), round(s.contrary, 2)) for s in (placed(rivals, 1), placed(rivals, 2))]
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


def one_of(rows: Sequence[Statement]) -> Statement:
    """One statement of several rows': it holds where one of them does, and does not where none of them does.

    The row is the same in every seed: the best of each seed would be a maximum over noise. So many tests at once need
    Bonferroni's correction, while all of them failing needs none.

    By hand, of two rows: p = 2 · .02, and the larger of both p-values of the contrary.

        >>> one, other = (Statement("x", (1.0, 2.0), 1.5, None, p, 1 - p) for p in (0.02, 0.5))
        >>> (found := one_of([one, other])).p, found.contrary, found.verdict
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


def by_sign(text: str, differences: Mapping[int, float], rounding: float = 0.0) -> Statement:
    """A statement on means that a paper prints: they have no seeds to test by, so it is as claimed or it is not."""
    values = tuple(differences[seed] for seed in sorted(differences))
    if not values:
        return Statement(text, values, None, None, None, None)
    p = 0.5 if abs(values[0]) < 1e-12 else 0.0 if values[0] > 0 else 1.0
    return Statement(text, values, values[0], None, p, 1 - p)


def valued(text: str, off: tuple[float, ...], counted: bool = False) -> Statement:
    """Is the value what is claimed, in every seed? One seed that is off refutes it.

    One that is not confirms it where it is counted, which no seed varies.
    """
    if not off or (len(off) < 2 and not any(off) and not counted):
        return Statement(text, off, None, None, None, None)
    wrong = any(difference > 1e-9 for difference in off)
    return Statement(text, off, max(off), None, 1.0 if wrong else 0.0, 0.0 if wrong else 1.0)


def off_by(value: float | Beyond, wanted: float, better: int) -> float:
    """How far a value is from the one that is claimed; of a target that was not reached, at least 1.

    A value that is better is not off: `better` is 1 where more is, -1 where less is, 0 where it must be the same.

        >>> [off_by(value, 6.0, -1) for value in (2.0, 6.0, 7.0, Beyond(5.0, 5))], off_by(2.0, 6.0, 0)
        ([0.0, 0.0, 1.0, 1.0], 4.0)
    """
    if isinstance(value, Beyond):
        return max(1.0, abs(value.bound - wanted))
    return max(0.0, better * (wanted - value)) if better else abs(value - wanted)
