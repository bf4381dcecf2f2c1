"""Streams are keyed: same key same numbers, any other key other numbers, and torch's own stream is left alone."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from fedstill.core.rng import key, numpy_stream, seeded, torch_stream

keys = st.tuples(
    st.integers(0, 2**31), st.sampled_from(["batches", "noise"]), st.integers(0, 99), st.none() | st.integers(0, 99)
)


@given(keys, keys)
def test_keys_differ_exactly_when_what_they_are_made_of_does(
    a: tuple[int, str, int, int], b: tuple[int, str, int, int]
) -> None:
    assert (key(*a) == key(*b)) == (a == b)
    assert 0 <= key(*a) < 2**63


def test_streams_repeat() -> None:
    assert torch.equal(
        torch.rand(3, generator=torch_stream(1, "x", 2)), torch.rand(3, generator=torch_stream(1, "x", 2))
    )
    assert numpy_stream(1, "x", 2).random() == numpy_stream(1, "x", 2).random() != numpy_stream(1, "x", 3).random()


def test_seeding_leaves_torchs_own_stream_as_it_was() -> None:
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    with seeded(1):
        inside = torch.rand(2)
    assert torch.equal(torch.rand(2), expected)
    with seeded(1):
        assert torch.equal(torch.rand(2), inside)
