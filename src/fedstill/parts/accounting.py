"""What a differentially private release costs: ε from noise, and the noise that an ε asks for.

The sums are dp-accounting's (Rényi differential privacy, composed and turned into (ε, δ)); nothing of them is written
here. Two ways of sampling are counted: Poisson (every sample of a client is in a batch with probability `rate`), and
without replacement (m of K clients take part in a round).
"""

import logging
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from scipy.optimize import brentq

from fedstill.core.errors import UsageError, extra
from fedstill.core.record import record

ORDERS = (
    1.5,
    1.75,
    *(x / 4 for x in range(8, 20)),
    *(x / 2 for x in range(10, 20)),
    *range(10, 65),
    96,
    128,
    256,
    512,
    1024,
)
"""Rényi orders: coarser below 5 than dp-accounting's own, which cost four times as much for the same ε to 0.1 %."""
FEW_ORDERS = (1.5, 2, 2.5, 3, 3.5, *range(4, 13), *range(14, 33, 3), *range(36, 65, 7), 96, 128, 256, 512, 1024)
"""Orders for looking for σ, some of the others: fewer never give a smaller ε, so a σ that is found this way spends no
more than its ε when it is counted with all; it is 1 % too large at most."""
WHOLE_ORDERS = (*range(2, 24), *range(24, 64, 4), 64, 128, 256)
"""Orders for sampling without replacement, where fractions are interpolated and each order costs more."""
MOST_NOISE = 1e4


@record
class Release:
    """`count` noisy sums of clipped vectors: noise (σ, in units of the clipping norm) and sampling rate of each."""

    noise: float
    rate: float
    count: int


def added(releases: Sequence[Release], new: Release) -> tuple[Release, ...]:
    """The releases with another one, which joins the last where noise and rate are the same."""
    last = releases[-1] if releases else None
    if last is not None and (last.noise, last.rate) == (new.noise, new.rate):
        return (*releases[:-1], Release(new.noise, new.rate, last.count + new.count))
    return (*releases, new) if new.count else tuple(releases)


def sample_epsilon(releases: Sequence[Release], delta: float) -> float:
    """ε at δ of all releases together, each on a Poisson sample; neighbours differ by one sample more or less.

    Args:
        releases: what was released; none costs nothing.
        delta: δ.

    Returns:
        ε; infinite without noise.
    """
    return _sample_epsilon(tuple((r.noise, r.rate, r.count) for r in releases), delta, ORDERS)


@cache
def _sample_epsilon(releases: tuple[tuple[float, float, int], ...], delta: float, orders: tuple[float, ...]) -> float:
    dp = _library()
    accountant = dp.rdp.RdpAccountant(orders)
    for noise, rate, count in releases:
        accountant.compose(dp.PoissonSampledDpEvent(rate, dp.GaussianDpEvent(noise)), count)
    return float(accountant.get_epsilon(delta))


@cache
def sample_noise(epsilon: float, delta: float, rate: float, count: int) -> float:
    """The least σ, to about 1 %, with which `count` releases at this sampling rate cost at most ε at δ."""
    return _least(lambda noise: _sample_epsilon(((noise, rate, count),), delta, FEW_ORDERS), epsilon)


@cache
def client_epsilon(noise: float, clients: int, active: int, rounds: int, delta: float) -> float:
    """ε at δ of `rounds` noisy sums, each over `active` of `clients` clients drawn without replacement.

    Neighbours differ in all of one client's data, so that its vector is replaced by another: `noise` (σ) is in units
    of how far that moves the sum, twice the clipping norm.
    """
    if active == clients:
        return _sample_epsilon(((noise, 1.0, rounds),), delta, ORDERS)
    dp = _library()
    accountant = dp.rdp.RdpAccountant(WHOLE_ORDERS, dp.NeighboringRelation.REPLACE_ONE)
    event = dp.SampledWithoutReplacementDpEvent(clients, active, dp.GaussianDpEvent(noise))
    accountant.compose(event, rounds)
    return float(accountant.get_epsilon(delta))


@cache
def client_noise(epsilon: float, clients: int, active: int, rounds: int, delta: float) -> float:
    """The least σ with which `rounds` sums over `active` of `clients` clients cost at most ε at δ."""
    return _least(lambda noise: client_epsilon(noise, clients, active, rounds, delta), epsilon)


def _least(cost: Callable[[float], float], epsilon: float) -> float:
    """The least σ that costs at most ε; cost falls as σ grows."""
    low, high = 0.5, 1.0
    while cost(high) > epsilon:
        low, high = high, 2 * high
        if high > MOST_NOISE:
            raise UsageError(f"epsilon = {epsilon:g}: no noise below σ = {MOST_NOISE:g} gives it; must be larger")
    while cost(low) <= epsilon:
        low, high = low / 2, low
        if low < 1e-3:
            return high
    noise_needed = float(brentq(lambda noise: cost(noise) - epsilon, low, high, rtol=1e-3, xtol=1e-4))
    return noise_needed if cost(noise_needed) <= epsilon else min(noise_needed * 1.002, high)


def _library() -> Any:
    with extra("privacy", "private"):
        import dp_accounting
    logging.getLogger("absl").setLevel(logging.ERROR)  # it tells of every order that it leaves out
    return dp_accounting
