"""Noise that a guarantee rests on: its scale, its keys, and that no two keys share numbers."""

import numpy as np
import pytest
import torch
from scipy import stats

pytest.importorskip("randomgen")

from fedstill.parts.noise import gaussian, key_of, stream_of


@pytest.mark.parametrize("secret", [False, True])
def test_ten_thousand_draws_are_gaussian_of_the_scale_asked_for(secret: bool) -> None:
    """σ = 3: the standard error of the deviation is .7 %, of the mean .03; half the sum of four has the same σ."""
    drawn = gaussian(stream_of(key_of(1), "noise"), 3.0, 10_000, secret)
    assert float(drawn.std()) == pytest.approx(3, rel=0.03)
    assert abs(float(drawn.mean())) < 0.12
    assert stats.kstest(drawn.numpy() / 3, "norm").pvalue > 1e-3
    assert len(np.unique(drawn.numpy())) == 10_000


def test_the_same_key_gives_the_same_noise_and_another_key_or_purpose_another() -> None:
    one = gaussian(stream_of(key_of(5, "a"), "noise"), 1.0, 2000, True)
    assert torch.equal(one, gaussian(stream_of(key_of(5, "a"), "noise"), 1.0, 2000, True))
    for key, purpose in ((key_of(5, "b"), "noise"), (key_of(5, "a"), "batches"), (key_of(5 + 2**32, "a"), "noise")):
        other = gaussian(stream_of(key, purpose), 1.0, 2000, True)
        assert abs(float(torch.corrcoef(torch.stack([one, other]))[0, 1])) < 0.1
        assert not torch.isclose(one, other).any()


def test_all_256_bits_of_a_key_count() -> None:
    """torch's generator would give the same numbers to seeds that differ above the 32nd bit."""
    assert len(key_of(1)) == 32
    key = key_of(1)
    first = {stream_of(key[:i] + bytes([key[i] ^ 1]) + key[i + 1 :], "noise").random() for i in range(32)}
    assert len(first) == 32
