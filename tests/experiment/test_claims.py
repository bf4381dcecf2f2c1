"""Claims over a table's cells: what is compared, by which test, and the verdict."""

from typing import Any

import numpy as np
import pytest

from fedstill.core.errors import UsageError
from fedstill.experiment.claims import Claim, claims, narrowed
from fedstill.experiment.judging import judged
from fedstill.experiment.presets import presets, read_preset
from fedstill.experiment.reproduce import Number
from fedstill.experiment.statement import compared
from fedstill.experiment.table_metrics import Beyond
from fedstill.report.claims import section

TABLE: dict[str, Any] = {
    "rows": [{"label": "A"}, {"label": "B"}, {"label": "C"}],
    "columns": [{"label": "x"}, {"label": "y"}],
    "metrics": ["amp", "fm", "rounds_to:fedavg"],
}


def made(**entry: Any) -> Claim:
    return claims(
        "tiny", {**TABLE, "claims": [{"text": "so", "left": "A", "right": "B", "metrics": ["amp"], **entry}]}
    )[0]


def number(row: str, column: str, values: list[Any], metric: str = "amp") -> Number:
    return Number(row, column, metric, values, None, "", list(range(1, len(values) + 1)))


def verdict(claim: Claim, *numbers: Number) -> str:
    return judged([claim], numbers)[0].verdict


def test_a_paired_test_sees_what_the_means_alone_do_not() -> None:
    """A is above B by 1, 2 and 3 hundredths (t = 3.46, p = .037), while both spread over thirty."""
    a, b = number("A", "x", [0.51, 0.62, 0.83]), number("B", "x", [0.50, 0.60, 0.80])
    claim = made(columns=["x"])
    assert verdict(claim, a, b) == "held"
    found = judged([claim], [a, b])[0]
    assert found.p == pytest.approx(0.0371, abs=1e-4)
    assert found.evidence == "mean difference 2 points, 90 % interval [0.3141, 3.686] points, p = 0.0371, 3 seeds"
    contrary = judged([made(left="B", right="A", columns=["x"])], [a, b])[0]
    assert contrary.verdict == "not held"
    assert contrary.evidence.startswith(
        "mean difference -2 points, 90 % interval [-3.686, -0.3141] points, the contrary: "
    )
    assert contrary.evidence.endswith("the contrary: p = 0.0371, 3 seeds"), "the p that decided, not 1 − p"
    assert ": not held, the contrary: p = 0.0371</li>" in section([contrary])


def test_one_seed_decides_nothing_and_neither_does_a_difference_within_the_spread() -> None:
    assert verdict(made(columns=["x"]), number("A", "x", [0.9]), number("B", "x", [0.1])) == "not decided"
    assert verdict(made(columns=["x"]), number("A", "x", [0.5, 0.7]), number("B", "x", [0.6, 0.5])) == "not decided"
    assert verdict(made(columns=["x"])) == "not decided"  # nothing was run


def test_a_narrowed_claim_names_the_columns_that_are_left_of_it() -> None:
    narrowed = made().within(["x", "z"])
    assert narrowed is not None
    assert (narrowed.text, narrowed.columns) == ("so (x)", ("x",))
    assert made(columns=["y"]).within(["x"]) is None


def test_rows_choose_claims_by_their_left_sides_and_columns_narrow_them() -> None:
    """As cells are chosen: * and ? are allowed, case does not matter, nothing named is all."""
    wanted = [made(), made(left=["A", "B"], right="C"), made(columns=["y"])]
    assert narrowed(wanted) == wanted
    assert [(c.left, c.columns) for c in narrowed(wanted, ["a"], ["X"])] == [(("A",), ("x",))]
    assert [c.left for c in narrowed(wanted, ["[ab]"])] == [("A",), ("A", "B"), ("A",)]


def test_the_evidence_of_several_statements_has_the_p_that_decided() -> None:
    """A is above B by .1, .2 and .3: t = 3.46, p = .0371. In y it is then below, by .99, 1 and 1.01: t = −173."""
    zero = [number("B", column, [0.0, 0.0, 0.0]) for column in "xy"]
    up, down = [0.1, 0.2, 0.3], [-0.99, -1.0, -1.01]
    held = judged([made()], [*zero, number("A", "x", up), number("A", "y", up)])[0]
    assert held.evidence == "2 of 2 held, 0 not, largest p = 0.0371, 3 seeds"
    cells = [*zero, number("A", "x", up), number("A", "y", down)]
    failed = judged([made()], cells)[0]
    assert failed.statements[1].contrary == pytest.approx(1.67e-5, rel=1e-2)
    assert failed.evidence == "1 of 2 held, 1 not, the contrary: corrected p = 3.33e-05, 3 seeds", "twice that"
    most = judged([made(hold="most")], cells)[0]
    assert (most.evidence, most.p) == ("1 of 2 held, 1 not, 3 seeds", None), "counts alone decide"


def test_seeds_are_paired_by_their_number() -> None:
    """Seed 1 of A has no partner: the differences are those of seeds 2 and 3."""
    b = Number("B", "x", "amp", [0.5, 0.6], None, "", [2, 3])
    found = judged([made(columns=["x"])], [number("A", "x", [0.1, 0.6, 0.7]), b])[0]
    assert found.statements[0].differences == pytest.approx((0.1, 0.1))


def test_less_is_better_where_the_metric_says_so() -> None:
    a, b = number("A", "x", [1e-3, 2e-3, 3e-3], "fm"), number("B", "x", [4e-3, 6e-3, 7e-3], "fm")
    assert verdict(made(metrics=["fm"], columns=["x"]), a, b) == "held"


def test_evidence_is_in_the_unit_of_the_table() -> None:
    """FM is shown in thousandths: A's is smaller by 1, 2 and 3 of them; ± 2.92 · 1/√3 is 1.686."""
    a, b = number("A", "x", [1e-3] * 3, "fm"), number("B", "x", [2e-3, 3e-3, 4e-3], "fm")
    found = judged([made(metrics=["fm"], columns=["x"])], [a, b])[0]
    told = "mean difference 2 · 10⁻³, 90 % interval [0.3141, 3.686] · 10⁻³, p = 0.0371, 3 seeds"
    assert found.evidence == told
    assert told in section([found])
    assert found.plain()["statements"][0]["mean"] == pytest.approx(2e-3), "in JSON as it was measured"


def test_a_margin_lets_the_left_be_that_much_worse() -> None:
    """B is below A by 1, 2 and 3 hundredths: with 4 allowed it is above by 3, 2 and 1 (p = .037); so too where less is
    better."""
    a, b = number("A", "x", [0.51, 0.62, 0.83]), number("B", "x", [0.50, 0.60, 0.80])
    near = {"left": "B", "right": "A", "columns": ["x"], "margin": 0.04}
    assert judged([made(**near)], [a, b])[0].evidence.startswith("beyond the margin: mean difference 2 points, ")
    assert verdict(made(**near), a, b) == "held"
    assert verdict(made(**{**near, "margin": 0.0}), a, b) == "not held"
    less = {"left": "A", "right": "B", "columns": ["x"], "metrics": ["fm"]}
    fm = number("A", "x", [0.51, 0.62, 0.83], "fm"), number("B", "x", [0.50, 0.60, 0.80], "fm")
    assert [verdict(made(**less, margin=m), *fm) for m in (0.0, 0.04)] == ["not held", "held"]


def test_every_needs_all_and_most_more_than_half() -> None:
    up = [number("A", "x", [0.5, 0.6, 0.71]), number("B", "x", [0.4, 0.5, 0.6])]
    down = [number("A", "y", [0.1, 0.2, 0.31]), number("B", "y", [0.4, 0.5, 0.6])]
    level = [number("A", "y", [0.5, 0.4, 0.6]), number("B", "y", [0.4, 0.5, 0.6])]
    assert verdict(made(), *up, *down) == "not held"
    assert verdict(made(), *up, *level) == "not decided"
    assert verdict(made(hold="most"), *up, *level) == "not decided"  # one of two is no majority
    third = [number("C", "x", [0.1, 0.1, 0.2]), number("C", "y", [0.1, 0.1, 0.2])]
    assert verdict(made(right=["B", "C"], hold="most"), *up, *level, *third) == "held"  # three of four


def test_top_compares_the_best_with_the_last_rival_who_may_be_above_it() -> None:
    """C leads; A is second of all: among the first two, not the first."""
    cells = [number("A", "x", [0.5, 0.6, 0.71]), number("B", "x", [0.3, 0.4, 0.5]), number("C", "x", [0.8, 0.9, 1.0])]
    assert verdict(made(relation="top", right=["*"], places=2, columns=["x"]), *cells) == "held"
    assert verdict(made(relation="top", right=["*"], places=1, columns=["x"]), *cells) == "not held"


def test_rivals_as_good_as_a_row_refute_its_place_no_more_often_than_the_level_allows() -> None:
    """A's rivals are drawn as A is: their best of each seed lies far above A, each of them by itself does not."""
    draw = np.random.default_rng(1)
    names = ["A", "B", "C", "D", "E", "F"]
    table = {**TABLE, "rows": [{"label": name} for name in names]}
    entry = {"text": "so", "left": "A", "right": "*", "relation": "top", "metrics": ["amp"], "columns": ["x"]}
    for places in (1, 2):
        (claim,) = claims("tiny", {**table, "claims": [{**entry, "places": places}]})
        found = [verdict(claim, *(number(name, "x", list(draw.normal(size=3))) for name in names)) for _ in range(200)]
        assert found.count("not held") <= 0.08 * len(found)
        assert found.count("held") <= 0.08 * len(found)


def test_more_places_than_rivals_claim_nothing() -> None:
    with pytest.raises(UsageError, match="places = 3: there are 2 on the right"):
        made(relation="top", right=["*"], places=3)


def test_one_of_several_is_at_the_top_only_where_the_same_row_is_in_every_seed() -> None:
    """A and B take turns, .2 above C and .2 below it: the best of each seed would be .2 above in all, A and B are not.

    With B far below, A's .10, .11 and .12 above C pass: p = .0014, doubled for two rows. At .01, .02 and .03 p = .037
    would pass alone, and does not when doubled. Both below C, by as much: not held, and no correction is due.
    """
    claim = made(relation="top", left=["A", "B"], right="C", columns=["x"])
    c = number("C", "x", [0.5, 0.5, 0.5, 0.5])
    turns = [number("A", "x", [0.7, 0.3, 0.71, 0.31]), number("B", "x", [0.3, 0.7, 0.31, 0.72])]
    assert verdict(claim, c, *turns) == "not decided"
    low = number("B", "x", [0.1, 0.2, 0.1])
    found = judged([claim], [c, low, number("A", "x", [0.60, 0.61, 0.62])])[0]
    assert (found.verdict, found.p) == ("held", pytest.approx(2 * 0.00137, abs=2e-5))
    assert found.evidence == "1 of 1 held, 0 not, p = 0.00274, 3 seeds"
    weak = number("A", "x", [0.51, 0.52, 0.53])
    assert verdict(made(relation="top", right="C", columns=["x"]), c, weak) == "held"
    assert verdict(claim, c, low, weak) == "not decided"
    below = number("A", "x", [0.49, 0.48, 0.47])
    failed = judged([claim], [c, low, below])[0]
    assert failed.verdict == "not held"
    assert failed.evidence == "0 of 1 held, 1 not, the contrary: p = 0.0371, 3 seeds"
    assert verdict(claim, c, below) == "not decided", "B was not run"


def test_grows_compares_the_gap_in_two_columns() -> None:
    """From x to y A's lead over B grows from .1 to .3 in one seed, to .31 in the other: by .2 and .21, t = 41."""
    cells = [
        number("A", "x", [0.5, 0.6]),
        number("B", "x", [0.4, 0.5]),
        number("A", "y", [0.5, 0.61]),
        number("B", "y", [0.2, 0.3]),
    ]
    assert verdict(made(relation="grows", columns=["x", "y"]), *cells) == "held"
    assert verdict(made(relation="grows", left="B", right="A", columns=["x", "y"]), *cells) == "not held"


def test_grows_over_several_columns_compares_the_last_with_each_before_it() -> None:
    """A's lead over B is .1 in x, .5 in y and .3 in z: it grows from x to z, and not from y to z."""
    table = {**TABLE, "columns": [{"label": label} for label in "xyz"]}
    entry = {"text": "so", "left": "A", "right": "B", "metrics": ["amp"], "relation": "grows", "columns": ["*"]}
    leads = {"x": [0.1, 0.1], "y": [0.5, 0.51], "z": [0.3, 0.32]}
    cells = [number(row, c, [lead * (row == "A") for lead in leads[c]]) for c in "xyz" for row in "AB"]
    found = judged(claims("tiny", {**table, "claims": [entry]}), cells)[0]
    assert [s.text for s in found.statements] == ["A over B, x → z, amp", "A over B, y → z, amp"]
    assert [s.verdict for s in found.statements] == ["held", "not held"]
    assert found.verdict == "not held", "one of two fails: t = 39 with one degree of freedom, p = .008 < .05 / 2"


def test_rises_compares_the_last_column_with_each_before_it() -> None:
    """A gains .1 and .12 from x to y: t = 11 with one degree of freedom, p = .029; B loses as much.

    Of a metric that is to be small, less is a rise.
    """
    cells = [number("A", "x", [0.5, 0.6]), number("A", "y", [0.6, 0.72])]
    cells += [number("B", "x", [0.6, 0.72]), number("B", "y", [0.5, 0.6])]
    found = judged([made(relation="rises", right=[], columns=["x", "y"])], cells)[0]
    assert (found.statements[0].text, found.verdict) == ("A, x → y, amp", "held")
    assert found.p == pytest.approx(0.0289, abs=1e-4)
    assert verdict(made(relation="rises", left="B", right=[], columns=["x", "y"]), *cells) == "not held"
    falls = [number("A", "x", [3e-3, 4e-3, 5e-3], "fm"), number("A", "y", [1e-3, 2e-3, 2.9e-3], "fm")]
    assert verdict(made(relation="rises", right=[], metrics=["fm"], columns=["x", "y"]), *falls) == "held"


def test_a_value_that_is_claimed_is_refuted_by_one_seed() -> None:
    claim = made(relation="is", value=1, metrics=["rounds_to:fedavg"], columns=["x"])
    assert verdict(claim, number("A", "x", [1.0, 1.0], "rounds_to:fedavg")) == "held"
    assert verdict(claim, number("A", "x", [1.0, 2.0], "rounds_to:fedavg")) == "not held"
    assert verdict(claim, number("A", "x", [1.0], "rounds_to:fedavg")) == "not decided"


def test_a_value_that_is_to_be_reached_may_be_better_but_not_worse_in_any_seed() -> None:
    """Rounds should be few, accuracies high; a target that was not reached in five rounds is not reached in six."""
    rounds = made(relation="reaches", value=6, metrics=["rounds_to:fedavg"], columns=["x"])
    assert verdict(rounds, number("A", "x", [6.0, 2.0], "rounds_to:fedavg")) == "held"
    assert verdict(rounds, number("A", "x", [2.0, 7.0], "rounds_to:fedavg")) == "not held"
    assert verdict(rounds, number("A", "x", [2.0, Beyond(5, 5)], "rounds_to:fedavg")) == "not held"
    assert verdict(rounds, number("A", "x", [2.0], "rounds_to:fedavg")) == "not decided"
    assert verdict(rounds) == "not decided"
    amp = made(relation="reaches", value=0.8, columns=["x"])
    assert verdict(amp, number("A", "x", [0.8, 0.9])) == "held"
    assert verdict(amp, number("A", "x", [0.9, 0.79])) == "not held"


def test_rows_on_both_sides_are_comparable_where_none_is_worse_than_another_by_the_margin() -> None:
    """A is .005 above B on average, with a standard error of .001 · √3: both ways within .02, A alone within .001.

    B over A within .02: .015 / .00173 = 8.7, p = .0065 with 2 degrees; within .001: −.004 / .00173 = −2.3, p = .93.
    """
    cells = [number("A", "x", [0.803, 0.806, 0.809]), number("B", "x", [0.801, 0.801, 0.801])]
    entry = {"text": "so", "left": ["A", "B"], "right": ["A", "B"], "metrics": ["amp"], "columns": ["x"]}
    (claim,) = claims("tiny", {**TABLE, "claims": [{**entry, "margin": 0.02}]})
    found = judged([claim], cells)[0]
    assert [s.text for s in found.statements] == ["A over B, x, amp", "B over A, x, amp"]
    assert found.verdict == "held"
    assert found.p == pytest.approx(0.0065, abs=2e-4)
    (strict,) = claims("tiny", {**TABLE, "claims": [{**entry, "margin": 0.001}]})
    assert [s.verdict for s in judged([strict], cells)[0].statements] == ["held", "not decided"]


def test_a_target_that_was_not_reached_counts_as_reached_a_round_later() -> None:
    """A takes 20 and 30 rounds, B not in 50: differences 51 − 20 and 51 − 30, t = 26/5 = 5.2, p = .06 with 1 degree."""
    a = number("A", "x", [20.0, 30.0], "rounds_to:fedavg")
    b = number("B", "x", [Beyond(50, 50), Beyond(50, 50)], "rounds_to:fedavg")
    found = judged([made(metrics=["rounds_to:fedavg"], columns=["x"])], [a, b])[0]
    assert found.statements[0].differences == (31.0, 21.0)
    assert found.p == pytest.approx(0.0605, abs=1e-4)


TIMES = {**TABLE, "metrics": ["seconds_to:fedavg", "time_speedup", "bytes_to:fedavg"]}
REACHED = {
    "seconds_to:fedavg": ([800.0, 810.0, 790.0], [Beyond(400.0, 10), Beyond(500.0, 10), Beyond(300.0, 10)]),
    "bytes_to:fedavg": ([8e8, 8.1e8, 7.9e8], [Beyond(4e8, 10), Beyond(5e8, 10), Beyond(3e8, 10)]),
    "time_speedup": ([0.5, 0.51, 0.49], [Beyond(1.0, 10), Beyond(0.8, 10), Beyond(1.3, 10)]),
}
"""A reached the target, late; B never did in ten rounds that took less time, fewer bytes."""


@pytest.mark.parametrize("metric", REACHED)
@pytest.mark.parametrize(("left", "right", "said"), [("A", "B", "held"), ("B", "A", "not held")])
@pytest.mark.parametrize("relation", ["better", "top"])
def test_not_reached_is_worse_than_reached_in_any_unit(
    metric: str, left: str, right: str, said: str, relation: str
) -> None:
    """In seconds B counts as a round of ten later than A: 80, 81 and 79 more, the same in bytes; speed-ups 1/11 less.

    A rule that took B's ten rounds for 11 seconds would say the contrary.
    """
    entry = {"text": "so", "left": left, "right": right, "metrics": [metric], "columns": ["x"], "relation": relation}
    (claim,) = claims("tiny", {**TIMES, "claims": [entry]})
    reached, never = REACHED[metric]
    found = judged([claim], [number("A", "x", reached, metric), number("B", "x", never, metric)])[0]
    gaps = [abs(value) * (1 / 11 if metric == "time_speedup" else 1 / 10) for value in reached]
    assert [abs(gap) for gap in found.statements[0].differences] == pytest.approx(gaps)
    assert found.verdict == said


def test_two_that_did_not_reach_a_target_are_level_and_a_bound_further_off_counts() -> None:
    """Seed 1: neither did: 0. Seed 2: A after 100 s, B not in 10 rounds of 40 s: 440 − 100."""
    (claim,) = claims("tiny", {**TIMES, "claims": [{"text": "so", "left": "A", "right": "B", "columns": ["x"]}]})
    a = number("A", "x", [Beyond(900.0, 10), 100.0], "seconds_to:fedavg")
    b = number("B", "x", [Beyond(300.0, 10), Beyond(400.0, 10)], "seconds_to:fedavg")
    assert judged([claim], [a, b])[0].statements[0].differences == pytest.approx((0.0, 340.0))


def test_a_value_is_refuted_where_the_target_was_not_reached_whatever_its_bound() -> None:
    claim = made(relation="is", value=11, metrics=["rounds_to:fedavg"], columns=["x"])
    assert verdict(claim, number("A", "x", [11.0, Beyond(10, 10)], "rounds_to:fedavg")) == "not held"
    assert verdict(claim, number("A", "x", [11.0, Beyond(11, 11)], "rounds_to:fedavg")) == "not held"


def test_level_differences_are_not_decided() -> None:
    assert compared("x", {1: 0.0, 2: 0.0}).verdict == "not decided"
    assert compared("x", dict.fromkeys(range(9), 0.0)).verdict == "not decided"


@pytest.mark.parametrize(("seeds", "p"), [(2, None), (3, 1 / 8), (4, 1 / 16), (5, 1 / 32)])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_same_difference_in_every_seed_is_judged_by_its_sign_alone(seeds: int, p: float | None, sign: int) -> None:
    """A needs 50 rounds, B 100, whatever the seed: that n seeds point one way has the chance 1/2ⁿ, below 5 % from 5 on.

    Rounds are told to the next that was examined, so no spread does not mean no doubt.
    """
    fast, slow = ("A", "B") if sign > 0 else ("B", "A")
    values = [
        number(fast, "x", [50.0] * seeds, "rounds_to:fedavg"),
        number(slow, "x", [100.0] * seeds, "rounds_to:fedavg"),
    ]
    found = judged([made(metrics=["rounds_to:fedavg"], columns=["x"])], values)[0]
    statement = found.statements[0]
    assert (statement.p if sign > 0 else statement.contrary) == p
    assert statement.interval is None
    assert found.verdict == ("not decided" if seeds < 5 else "held" if sign > 0 else "not held")
    tested = "not tested" if p is None else f"p = {p:.3g}" if sign > 0 else "p = 1"
    tested = "the contrary: p = 0.0312" if found.verdict == "not held" else tested
    assert found.evidence == f"difference {50 * sign} rounds in every seed, {tested}, {seeds} seeds"


def test_rounding_of_records_is_no_spread() -> None:
    """A leads B by 1/3: .666667 − .333333, .833333 − .5 and .333333 − 0 as records have them. Two seeds gave p = 5e-7.

    Nor is it a lead: .666667 − .333333 less .333333 in each of five seeds, half of which are a millionth above.
    """
    a, b = [0.666667, 0.833333, 0.333333], [0.333333, 0.5, 0.0]
    for seeds, p in ((2, None), (3, 0.125)):
        found = judged([made(columns=["x"])], [number("A", "x", a[:seeds]), number("B", "x", b[:seeds])])[0]
        assert (found.p, found.verdict) == (p, "not decided")
        assert found.statements[0].interval is None
    level = [number("A", "x", [0.333334, 0.333333] * 3), number("B", "x", [0.333333] * 6)]
    assert judged([made(columns=["x"])], level)[0].p == 0.5


@pytest.mark.parametrize(("metric", "base", "step"), [("amp", 0.5, -2e-6), ("fm", 1e-3, 2e-8), ("fm", 0.0, 1e-9)])
def test_differences_just_beyond_rounding_are_tested_as_any_others(metric: str, base: float, step: float) -> None:
    """B is worse by 1, 2 and 3 steps: p = .0371, however small they are beside what the sixth digit can do."""
    a, b = [base] * 3, [base + step * n for n in (1, 2, 3)]
    found = judged([made(metrics=[metric], columns=["x"])], [number("A", "x", a, metric), number("B", "x", b, metric)])
    assert found[0].p == pytest.approx(0.0371, abs=1e-4)


def test_a_counted_value_is_confirmed_by_one_seed_and_refuted_by_one() -> None:
    table = {**TABLE, "metrics": ["classifier_forward", "amp"]}
    entry = {"text": "so", "left": "A", "relation": "is", "value": 3, "columns": ["x"]}
    for metric, value, expected in (
        ("classifier_forward", 3, "held"),
        ("classifier_forward", 2, "not held"),
        ("amp", 3, "not decided"),
    ):
        (claim,) = claims("tiny", {**table, "claims": [{**entry, "metrics": [metric]}]})
        assert verdict(claim, number("A", "x", [float(value)], metric)) == expected
        assert verdict(claim) == "not decided"


def test_bytes_are_counted_so_three_seeds_that_agree_are_enough() -> None:
    """The settings decide how much is sent; two seeds decide nothing without a spread, here neither."""
    entry = {"text": "so", "left": "A", "right": "B", "columns": ["x"]}
    (claim,) = claims("tiny", {**TABLE, "metrics": ["bytes"], "claims": [entry]})
    for seeds, said in ((2, "not decided"), (3, "held")):
        few, many = number("A", "x", [3e6] * seeds, "bytes"), number("B", "x", [9e6] * seeds, "bytes")
        assert verdict(claim, few, many) == said
    assert judged([claim], [few, many])[0].evidence == "difference 6 MB in every seed, counted, 3 seeds"


@pytest.mark.parametrize(
    ("entry", "word"),
    [
        ({"left": "Z"}, "unknown label in a claim of tiny 'Z'"),
        ({"metrics": ["wlp"]}, "unknown metric in a claim of tiny 'wlp'"),
        ({"relation": "beter"}, "unknown relation in a claim of tiny 'beter'; did you mean better"),
        ({"relation": "grows", "columns": ["x"]}, "needs two columns"),
        ({"relation": "is"}, "needs a value"),
        ({"relation": "top", "margin": 0.1}, "relation top: takes no margin"),
        ({"margin": float("nan")}, "margin = nan: must be a number ≥ 0"),
        ({"margin": -0.1}, "margin = -0.1: must be a number ≥ 0"),
        ({"margin": "x"}, "margin = 'x': must be a number ≥ 0"),
        ({"margin": 5.0, "metrics": ["rounds_to:fedavg"]}, "margin: has no meaning beside rounds_to:fedavg"),
        ({"relation": "top", "places": 0}, "places = 0: must be a whole number ≥ 1"),
        ({"relation": "top", "places": "x"}, "places = 'x': must be a whole number ≥ 1"),
        ({"right": "A"}, "relation better: needs right"),
        ({"hold": "all"}, "must be every or most"),
        ({"where": "x"}, "unknown key of a claim of tiny 'where'"),
        ({"relation": "reaches", "value": "0.9"}, "claim 'so': value = '0.9': must be a number"),
        ({"relation": "is", "value": float("nan")}, "claim 'so': value = nan: must be a number"),
        ({"left": 5}, "claim 'so': left = 5: must be a text or a list of texts"),
        ({"columns": [1]}, r"claim 'so': columns = \[1\]: must be a text or a list of texts"),
    ],
)  # fmt: skip
def test_a_misspelt_claim_is_an_error(entry: dict[str, Any], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        made(**entry)


@pytest.mark.parametrize("name", [n for n in presets() if read_preset(n).content.get("claims")])
def test_every_claim_of_a_preset_is_over_its_cells(name: str) -> None:
    preset = read_preset(name)
    cells = {(cell.row, cell.column): set(cell.metrics) for cell in preset.cells()}
    for claim in claims(name, preset.content):
        for row in (*claim.left, *claim.right):
            for column in claim.columns:
                asked = {metric for metric in claim.metrics if column in claim.about(metric)}
                assert asked
                assert asked <= cells.get((row, column), asked)
        assert any((row, column) in cells for row in claim.left for column in claim.columns)


def test_columns_with_metrics_of_their_own_are_judged_by_these_alone() -> None:
    """x shows AMP, y shows FM: a claim over both is two statements, not four with two that nobody can measure."""
    own = [{"label": "x", "metrics": ["amp"]}, {"label": "y", "metrics": ["fm"]}]
    table = {**TABLE, "columns": own, "claims": [{"text": "so", "left": "A", "right": "B", "metrics": ["amp", "fm"]}]}
    numbers = [number("A", "x", [0.9, 0.8]), number("B", "x", [0.6, 0.51])]
    numbers += [number("A", "y", [0.1, 0.2], "fm"), number("B", "y", [0.4, 0.51], "fm")]
    found = judged(claims("tiny", table), numbers)[0]
    assert [s.text for s in found.statements] == ["A over B, x, amp", "A over B, y, fm"]
    assert found.verdict == "held"


def test_a_claim_is_also_judged_by_the_numbers_that_the_paper_prints() -> None:
    """It has A at .7 ± .1 and B at .8 in AMP, so its own claim fails; A reaches a target in 9 rounds, B in > 60."""
    numbers = [Number("A", "x", "amp", [], [0.7, 0.1]), Number("B", "x", "amp", [], 0.8)]
    numbers += [Number("A", "x", "rounds_to:fedavg", [], 9), Number("B", "x", "rounds_to:fedavg", [], ">60")]
    found = judged([made(columns=["x"]), made(columns=["x"], metrics=["rounds_to:fedavg"]), made()], numbers)
    assert [judgement.paper for judgement in found] == ["not held", "held", None], "y is not printed"
    assert found[0].evidence == "no record yet; not so in the paper's own numbers"
    assert found[1].evidence == "no record yet"


@pytest.mark.parametrize(
    ("a", "b", "said"), [(2.0, "<1", "held"), ("<1", 0.5, "not held"), ("<1", "<1", "not decided")]
)
def test_a_paper_s_speed_up_below_one_is_worse_than_any_that_was_reached(a: Any, b: Any, said: str) -> None:
    (claim,) = claims("tiny", {**TIMES, "claims": [{"text": "so", "left": "A", "right": "B", "columns": ["x"],
                                                    "metrics": ["time_speedup"]}]})  # fmt: skip
    printed = [Number("A", "x", "time_speedup", [], a), Number("B", "x", "time_speedup", [], b)]
    assert judged([claim], printed)[0].paper == said


CONTRARY = {
    ("dafkd/table3b", "sharing takes fewer rounds to every target"),
    ("dafkd/table3b", "sharing saves more rounds than the domain's correlation"),
    ("fedkf/fig5", "the WLP of FedKF (OCA) is the highest of all in the last round"),
    ("fedkf/table5", "F3: FedKF is better than FedGen in AMP, FM and WLP"),
    ("fedkf/table6", "F3: FedKF is better than FedGen in AMP, FM and WLP"),
    ("fedkf/table7", "F3: FedKF is better than FedGen in AMP, FM and WLP"),
    ("fedkf/table5", "F4: FedKF's OCA is further ahead of its ACA at α = 0.01 than at α = 1"),
    ("fedkf/table5", "F5, in table V alone: FedKF (OCA) is better than FedKF- (OCA), in most cases"),
    ("fedkf/table5", "F5, in table V alone: FedKF (ACA) is better than FedKF- (ACA), in most cases"),
    ("fedkf/table6", "F5, in table VI alone: FedKF (ACA) is better than FedKF- (ACA), in most cases"),
    ("fedrad/table1", "FedRAD is better than every other method, with homogeneous and heterogeneous data"),
    ("fedrad/table3", "FedRAD is further ahead of the others at β = 0.1 than at β = 0.7"),
    (
        "fedtkd/table3",
        "as figure 12 shows for CIFAR-10, Fashion-MNIST: Type-1 makes the clients of FedDistill+ and FedHe less "
        "accurate, with 10 clients",
    ),
    ("fedtkd/table3", "MNIST: FedTKD's clients are behind FedHe's under Type-1, with 15 clients"),
    ("fedtkd/table3", "MNIST: FedTKD's clients are behind FedDistill's under Type-3, with 10 clients"),
    ("fedtkd/table3", "MNIST: FedTKD's clients are behind FedDistill's under Type-3, with 15 clients"),
    ("fedtkd/table3", "MNIST: FedTKD's clients are behind FedDistill's under Type-3, with 20 clients"),
}
"""What a paper says although the numbers of the same table say otherwise. Anything else here would be a misreading."""


def test_the_papers_own_numbers_show_what_they_claim() -> None:
    contrary = set()
    for name in presets():
        preset = read_preset(name)
        printed = [
            Number(cell.row, cell.column, metric, [], cell.paper.get(metric))
            for cell in preset.cells(full=True)
            for metric in cell.metrics
        ]
        for judgement in judged(claims(name, preset.content), printed):
            if judgement.paper not in ("held", None):
                contrary.add((name, judgement.claim.text))
    assert contrary == CONTRARY


def test_the_last_points_of_fedkfs_figure_5_are_its_tables_numbers() -> None:
    figure = read_preset("fedkf/fig5").content["numbers"]
    for column, table in {"EMNIST": "table5", "CIFAR-10": "table6", "CIFAR-100": "table7"}.items():
        printed = read_preset(f"fedkf/{table}").content["numbers"]
        assert {row: cells[column] for row, cells in figure.items()} == {row: printed[row]["α = 0.1"] for row in figure}
