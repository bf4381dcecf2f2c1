"""What noise costs, measured against the libraries' own accountants."""

import math

import pytest

dp = pytest.importorskip("dp_accounting")
pytest.importorskip("opacus")

from fedstill.core.errors import UsageError  # noqa: E402
from fedstill.parts.accounting import (  # noqa: E402
    FEW_ORDERS,
    ORDERS,
    Release,
    added,
    client_epsilon,
    client_noise,
    sample_epsilon,
    sample_noise,
)

SETTINGS = [  # σ, rate, steps, δ
    (0.6, 0.01, 100, 1e-5), (0.8, 0.01, 1000, 1e-5), (1.0, 0.01, 5000, 1e-6), (1.0, 0.1, 200, 1e-5),
    (1.2, 0.05, 500, 1e-3), (2.0, 0.3, 100, 1e-5), (3.0, 0.5, 60, 1e-4), (4.0, 1.0, 20, 1e-5),
    (5.0, 0.02, 300, 1e-5), (8.0, 0.64, 400, 1e-6),
]  # fmt: skip


@pytest.mark.parametrize(("noise", "rate", "steps", "delta"), SETTINGS)
def test_epsilon_agrees_with_dp_accounting_and_opacus_to_one_percent(
    noise: float, rate: float, steps: int, delta: float
) -> None:
    from opacus.accountants import RDPAccountant

    ours = sample_epsilon([Release(noise, rate, steps)], delta)
    theirs = dp.rdp.RdpAccountant()
    theirs.compose(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(noise)), steps)
    opacus = RDPAccountant()
    opacus.history = [(noise, rate, steps)]
    assert ours == pytest.approx(theirs.get_epsilon(delta), rel=0.01)
    assert ours == pytest.approx(opacus.get_epsilon(delta), rel=0.01)


def test_epsilon_is_an_upper_bound_of_the_tight_accountant() -> None:
    """Privacy loss distributions are nearly exact; Rényi orders cost up to a tenth more, and never less."""
    tight = dp.pld.PLDAccountant()
    tight.compose(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(1.5)), 50)
    exact = tight.get_epsilon(1e-5)
    assert exact < sample_epsilon([Release(1.5, 0.1, 50)], 1e-5) < 1.2 * exact


def test_releases_with_different_noise_add_up() -> None:
    """200 steps at once, or 50 and 150 in two turns: the same list, the same ε; with other noise both stay listed."""
    once = added((), Release(1.0, 0.1, 200))
    twice = added(added((), Release(1.0, 0.1, 50)), Release(1.0, 0.1, 150))
    assert [(r.noise, r.rate, r.count) for r in twice] == [(1.0, 0.1, 200)]
    assert sample_epsilon(once, 1e-5) == sample_epsilon(twice, 1e-5)
    mixed = added(once, Release(2.0, 0.1, 100))
    assert len(mixed) == 2
    assert sample_epsilon(mixed, 1e-5) > sample_epsilon(once, 1e-5)


def test_no_release_costs_nothing_and_no_noise_everything() -> None:
    assert sample_epsilon([], 1e-5) == 0
    assert math.isinf(sample_epsilon([Release(0.0, 0.1, 1)], 1e-5))


@pytest.mark.parametrize(("epsilon", "rate", "steps"), [(8.0, 0.2, 100), (1.0, 0.05, 400), (0.3, 1.0, 10)])
def test_the_noise_found_spends_the_budget_and_not_more(epsilon: float, rate: float, steps: int) -> None:
    noise = sample_noise(epsilon, 1e-5, rate, steps)
    assert 0.97 * epsilon < sample_epsilon([Release(noise, rate, steps)], 1e-5) <= epsilon
    assert sample_epsilon([Release(0.98 * noise, rate, steps)], 1e-5) > epsilon


@pytest.mark.parametrize("turns", [1, 7])
@pytest.mark.parametrize("epsilon", [0.05, 0.5, 20.0])
def test_the_last_planned_turn_can_still_be_paid_for(epsilon: float, turns: int) -> None:
    """σ is looked for with fewer orders than ε is counted with: never may all planned releases exceed the budget."""
    assert set(FEW_ORDERS) <= set(ORDERS)
    noise = sample_noise(epsilon, 1e-5, 0.1, 40 * turns)
    releases: tuple[Release, ...] = ()
    for _ in range(turns):
        releases = added(releases, Release(noise, 0.1, 40))
    assert sample_epsilon(releases, 1e-5) <= epsilon


def test_an_epsilon_that_no_noise_gives_is_refused() -> None:
    with pytest.raises(UsageError, match=r"epsilon = 1e-06: no noise below"):
        sample_noise(1e-6, 1e-5, 1.0, 1000)


@pytest.mark.parametrize(("noise", "clients", "active", "rounds"), [(1.0, 100, 10, 20), (2.0, 50, 5, 100)])
def test_client_epsilon_agrees_with_dp_accounting(noise: float, clients: int, active: int, rounds: int) -> None:
    theirs = dp.rdp.RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    theirs.compose(dp.SampledWithoutReplacementDpEvent(clients, active, dp.GaussianDpEvent(noise)), rounds)
    assert client_epsilon(noise, clients, active, rounds, 1e-5) == pytest.approx(theirs.get_epsilon(1e-5), rel=0.01)


def test_who_is_drawn_seldom_needs_less_noise() -> None:
    """All of 20 clients in each of 10 rounds is the Gaussian mechanism ten times; 2 of 20 need less noise for it."""
    everyone = client_noise(4.0, 20, 20, 10, 1e-5)
    assert client_epsilon(everyone, 20, 20, 10, 1e-5) == pytest.approx(4.0, rel=0.02)
    assert everyone == pytest.approx(sample_noise(4.0, 1e-5, 1.0, 10), rel=0.01)
    assert client_noise(4.0, 20, 2, 10, 1e-5) < 0.75 * everyone
