"""Label counts and what the server makes of them."""

import math

import pytest
import torch

from fedstill.parts.labels import CountedUpdate, class_shares, counts_of, diversity, draw_labels, miscounted


def test_class_shares_by_hand() -> None:
    """Class 0: 3 of 4 and 1 of 4; class 1: nobody; class 2: half each."""
    counts = counts_of([CountedUpdate({}, torch.tensor([3, 0, 2])), CountedUpdate({}, torch.tensor([1, 0, 2]))])
    assert class_shares(counts).tolist() == [[0.75, 0.0, 0.5], [0.25, 0.0, 0.5]]


def test_labels_come_in_proportion_and_never_of_a_class_nobody_has() -> None:
    drawn = draw_labels(torch.tensor([30, 0, 10]), 4000, torch.Generator().manual_seed(0))
    counts = torch.bincount(drawn, minlength=3)
    assert counts[1] == 0
    assert int(counts[0]) == pytest.approx(3000, abs=120)  # four standard deviations


@pytest.mark.parametrize(("labels", "fine"), [([1, 0], True), ([2, -1], False), ([0, 0], False)])
def test_impossible_counts_are_named(labels: list[int], fine: bool) -> None:
    wrong = miscounted(torch.tensor(labels))
    assert (wrong is None) == fine
    assert fine or "label counts" in str(wrong)


def test_diversity_by_hand() -> None:
    """|Δ made| = (1 + 3)/2 = 2 and (Δ z)² = 4 for two of the four pairs, else 0: exp(−(8 + 8)/4) = e⁻⁴."""
    noise, made = torch.tensor([[0.0], [2.0]]), torch.tensor([[0.0, 0.0], [1.0, 3.0]])
    assert float(diversity(noise, made)) == pytest.approx(math.exp(-4))
    assert float(diversity(noise, torch.zeros(2, 1, 3, 3))) == 1.0
