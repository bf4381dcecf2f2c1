"""Copies that follow a server's weights by steps: who is told what, by hand."""

import pytest
import torch
from smallest import same_bits
from torch import tensor

from fedstill.core.errors import RunError
from fedstill.core.record import State
from fedstill.parts.trail import KEPT, Copy, Followed, Trail, copy_for, followed, stepped_on

ZERO = {"w": torch.zeros(8, 8)}
STEP = {"w": torch.ones(8, 8)}
"""Rank 1: 16 numbers instead of 64."""


def walked(turns: list[list[int]]) -> tuple[Trail, State]:
    """The server after rounds in which these clients answered; every round adds 1 to every weight."""
    trail, weights = Trail(), ZERO
    for clients in turns:
        trail, weights = stepped_on(trail, weights, STEP, 0.9, clients)
    return trail, weights


def test_who_missed_nothing_gets_one_step_and_who_missed_two_gets_three() -> None:
    """After three rounds client 0 has version 2 (told in round 3), client 1 version 0; both come to w = 3."""
    trail, weights = walked([[0, 1], [0], [0]])
    torch.testing.assert_close(weights["w"], torch.full((8, 8), 3.0))
    assert [len(copy_for(trail, weights, k).steps) for k in (0, 1)] == [1, 3]
    exact = {v: walked([[0, 1], [0], [0]][:v])[1] for v in (0, 2)}
    for client, version in ((0, 2), (1, 0)):
        after = followed(copy_for(trail, weights, client), Followed(exact[version], version))
        assert after.version == 3
        assert same_bits(after.weights, weights)


def test_a_stranger_and_who_was_away_too_long_get_the_weights() -> None:
    trail, weights = walked([[0], *[[1]] * (KEPT + 1)])
    assert len(trail.steps) == KEPT
    for client in (0, 7, None):
        told = copy_for(trail, weights, client)
        assert (told.weights is weights, told.steps, told.version) == (True, (), KEPT + 2)
    new = followed(copy_for(trail, weights, 7), None)
    assert (new.weights is weights, new.version) == (True, KEPT + 2)


def test_steps_that_are_more_bytes_than_the_weights_are_not_sent() -> None:
    """Four steps of 16 numbers are as many as the 64 weights."""
    trail, weights = walked([[0], [], [], []])
    assert copy_for(trail, weights, 0).weights is weights
    assert copy_for(*walked([[0], [], []]), 0).weights == {}


def test_a_client_whose_reply_was_lost_leaves_out_what_it_took_already() -> None:
    """The server knows of version 0; the client is at 1, with w = 1, and is told both steps: 2, not 3."""
    trail, weights = walked([[0], []])
    after = followed(copy_for(trail, weights, 0), Followed({"w": torch.ones(8, 8)}, 1))
    torch.testing.assert_close(after.weights["w"], torch.full((8, 8), 2.0))


def test_a_client_that_lost_its_copy_says_so() -> None:
    trail, weights = walked([[0], []])
    with pytest.raises(RunError, match="copy of the shared model is lost: it was told the steps since 0"):
        followed(copy_for(trail, weights, 0), None)


def test_without_versions_the_weights_are_the_weights() -> None:
    assert followed(Copy({"w": tensor([2.0])}), None).weights["w"].item() == 2.0
