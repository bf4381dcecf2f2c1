"""Portions: everybody's indices in one array, and what is made of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedstill.data.portions import Portions

OWNERS = st.lists(st.integers(-1, 4), max_size=30).map(lambda owner: np.array(owner, np.int64))


@given(OWNERS)
def test_by_owner_gives_everybody_his_own_in_order(owner: np.ndarray) -> None:
    portions = Portions.by_owner(owner, 5)
    assert [part.tolist() for part in portions] == [np.flatnonzero(owner == k).tolist() for k in range(5)]
    assert portions.sizes.tolist() == [len(part) for part in portions]


@given(OWNERS, st.integers(1, 3))
def test_counts_are_those_of_each_part(owner: np.ndarray, classes: int) -> None:
    labels = np.arange(len(owner)) % classes
    portions = Portions.by_owner(owner, 5)
    by_hand = [np.bincount(labels[part], minlength=classes).tolist() for part in portions]
    assert portions.counts(labels, classes).tolist() == by_hand


def test_a_client_is_a_view_and_knows_its_place() -> None:
    portions = Portions.of([np.array([4, 7]), np.array([], np.int64), np.array([5])])
    assert [part.tolist() for part in portions] == [[4, 7], [], [5]]
    assert portions[-1].tolist() == [5]
    assert [part.tolist() for part in portions[:2]] == [[4, 7], []]
    assert portions[0].base is portions.flat
    assert Portions.of(portions) is portions
    with pytest.raises(IndexError):
        portions[3]


def test_nobody_is_possible() -> None:
    nobody = Portions.of(())
    assert (len(nobody), list(nobody), nobody.counts(np.array([], np.int64), 2).shape) == (0, [], (0, 2))
