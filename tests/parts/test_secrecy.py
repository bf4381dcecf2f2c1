"""Secure sums: the protocol with clients lost in every phase, and what the hub gets to see."""

from itertools import combinations
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

pytest.importorskip("Crypto")

from fedstill.core.errors import FedstillError
from fedstill.parts.secrecy import Member, TooFew, agreed, joined, split, stream
from fedstill.parts.secure_sums import Scale, meeting

NUMBERS = np.random.default_rng(5)
VECTORS = {k: NUMBERS.normal(size=40) for k in (2, 3, 5, 7, 11, 13)}
THRESHOLD = 4


def summed(lost: dict[int, int]) -> NDArray[np.float64]:
    scale = Scale(8.0, len(VECTORS))
    words = {k: scale.whole(vector) for k, vector in VECTORS.items()}
    return meeting(words, list(VECTORS), {k: lost.get(k) for k in VECTORS}, THRESHOLD, scale)


@pytest.mark.parametrize("phase", [0, 1, 2, 3])
@pytest.mark.parametrize("count", [0, 1, 2])
def test_the_sum_is_the_plain_one_whoever_is_lost_down_to_the_threshold(phase: int, count: int) -> None:
    """Six clients, four needed. Of those lost while unmasking the vectors had arrived: they are in the sum.

    Rounding errs by half a step for each vector: the step is 16 over (2³² − 1)/6 levels, 2.2e-8.
    """
    lost = dict.fromkeys([3, 13][:count], phase)
    arrived = [k for k in VECTORS if k not in lost or phase == 3]
    plain = np.sum([VECTORS[k] for k in arrived], axis=0)
    scale = Scale(8.0, 6)
    assert scale.step == pytest.approx(16 * 6 / 2**32, rel=1e-6)
    assert np.abs(summed(lost) - plain).max() <= len(arrived) * scale.step / 2 * 1.001


def test_clients_may_be_lost_in_different_phases_of_one_round() -> None:
    plain = np.sum([VECTORS[k] for k in VECTORS if k != 5], axis=0)
    assert np.allclose(summed({5: 2, 7: 3}), plain, atol=1e-6)


@pytest.mark.parametrize("phase", [0, 1, 2, 3])
def test_below_the_threshold_the_round_is_given_up(phase: int) -> None:
    with pytest.raises(TooFew, match=r"only 3 clients were left after .*, 4 are needed"):
        summed(dict.fromkeys([2, 3, 5], phase))


def begun(members: list[int], threshold: int) -> tuple[dict[int, Member], dict[int, Any], dict[int, dict[int, bytes]]]:
    people = {k: Member(k, threshold) for k in members}
    keys = {k: m.public() for k, m in people.items()}
    return people, keys, {k: m.shares(keys) for k, m in people.items()}


def test_a_member_reveals_nothing_to_a_hub_that_asks_for_too_much() -> None:
    """With fewer vectors than the threshold, or for one member both seed and key: that would lay its vector open."""
    people, _, letters = begun([1, 2, 3], 2)
    for k, m in people.items():
        m.masked({s: sent[k] for s, sent in letters.items() if s != k}, np.zeros(4, dtype=np.uint32))
    with pytest.raises(TooFew):
        people[1].unmask([1], [2, 3])
    with pytest.raises(TooFew, match="nothing is unmasked"):
        people[1].unmask([1, 2, 3], [3])


def test_a_letter_or_a_key_that_was_changed_is_refused() -> None:
    people, keys, letters = begun([1, 2, 3], 2)
    forged = letters[2][1][:-1] + bytes([letters[2][1][-1] ^ 1])
    with pytest.raises(FedstillError, match="a letter from 2 to 1 was changed"):
        people[1].masked({2: forged, 3: letters[3][1]}, np.zeros(4, dtype=np.uint32))
    with pytest.raises(FedstillError, match="not passed on as they were sent"):
        Member(1, 2).shares(keys)


def test_shares_give_the_secret_back_to_a_threshold_and_to_no_fewer() -> None:
    secret = bytes(range(32))
    shares = split(secret, 3, 5)
    assert all(joined(list(some)) == secret for some in combinations(shares, 3))
    assert all(joined(list(some)) != secret for some in combinations(shares, 2))


def test_what_the_hub_receives_does_not_depend_on_what_was_sent() -> None:
    """The masked words of a vector of zeros and of one of the largest number are uniform both (χ² over 16 bins of the
    high bits), and agree no more with each other than chance: the correlation of 20,000 words is below .03.
    """
    length = 20_000
    seen = []
    for values in (np.zeros(length, dtype=np.uint32), np.full(length, 2**29, dtype=np.uint32)):
        people, _, letters = begun([1, 2, 3], 2)
        seen.append(people[1].masked({s: sent[1] for s, sent in letters.items() if s != 1}, values))
    for words in seen:
        assert stats.chisquare(np.bincount(words >> 28, minlength=16)).pvalue > 1e-4
        assert stats.chisquare(np.bincount(words & 15, minlength=16)).pvalue > 1e-4
    assert stats.ks_2samp(seen[0], seen[1]).pvalue > 1e-4
    assert abs(np.corrcoef(seen[0].astype(float), seen[1].astype(float))[0, 1]) < 0.03


def test_two_members_agree_on_a_mask_and_a_third_does_not() -> None:
    one, two, three = Member(1, 2), Member(2, 2), Member(3, 2)
    ours = agreed(one._masking, two.public()[0])
    assert ours == agreed(two._masking, one.public()[0])
    assert ours != agreed(three._masking, one.public()[0])
    assert (stream(ours, 5) == stream(ours, 9)[:5]).all()


def test_a_number_beyond_the_limit_is_refused() -> None:
    with pytest.raises(FedstillError, match=r"a number of 9 is beyond ±8; raise limit"):
        Scale(8.0, 2).whole(np.array([9.0]))
