"""DaFKD's pictures, and the correlation of α̂ with label shares by hand."""

from pathlib import Path

import numpy as np
import pytest
import torch
from smallest import small_experiment, small_method

from fedstill.core.errors import UsageError
from fedstill.experiment.result import Result
from fedstill.experiment.run import start
from fedstill.methods.dafkd.domain import domain_correlation
from fedstill.parts.conditional_generator import hang
from fedstill.report.figures.domain import correlation_figure, pictures, samples_figure, weights_figure
from fedstill.report.figures.partition import save


def test_correlation_by_hand() -> None:
    """α̂ .8 .3 .2 .7 less .5: .3 −.2 −.3 .2; shares .9 .1 .2 .8 less .5: .4 −.4 −.3 .3.

    Σ products .12 + .08 + .09 + .06 = .35; squares .26 and .5: .35/√.13 = .97073.
    The third class was not made, whatever its weights; client 5 did not answer.
    """
    counts = np.zeros((6, 3), int)
    counts[1], counts[3], counts[5] = [9, 1, 0], [2, 8, 0], [0, 0, 100]
    weights = {"1": [0.8, 0.3, 0.0], "3": [0.2, 0.7, 0.0]}
    assert domain_correlation(weights, [5, 5, 0], counts) == pytest.approx(0.35 / np.sqrt(0.13))


@pytest.mark.parametrize("weights", [{"0": [0.5, 0.5], "1": [0.5, 0.5]}, {"0": [1.0, 0.0]}])
def test_no_correlation_where_nothing_varies(weights: dict[str, list[float]]) -> None:
    """Equal weights; or one class made, by one client alone."""
    made = [3, 3] if len(weights) > 1 else [3, 0]
    assert domain_correlation(weights, made, np.array([[9, 1], [2, 8]])) is None


def test_the_gallery_keeps_doubling_rounds_and_the_last() -> None:
    gallery: dict[int, torch.Tensor] = {}
    for number in range(1, 14):
        gallery = dict(hang(gallery, number, torch.full((1,), number)))
    assert {n: int(images) for n, images in gallery.items()} == {1: 1, 2: 2, 4: 4, 8: 8, 13: 13}


def test_a_run_shows_its_pictures(runs: Path, tmp_path: Path) -> None:
    start(small_experiment(small_method("dafkd", local_steps=2)), out=runs, name="one")
    found = pictures(Result.read(runs / "one"))
    assert [title for title, _ in found] == [
        "weights α̂ against label shares, round 2",
        "do the discriminators know their domain?",
        "generated samples over the rounds",
    ]
    for number, (_, figure) in enumerate(found):
        assert save(figure, tmp_path / f"{number}.png").stat().st_size > 2000


def test_other_runs_show_nothing_of_the_kind(runs: Path) -> None:
    start(small_experiment(small_method("fedavg")), out=runs, name="one")
    assert pictures(Result.read(runs / "one")) == []
    assert pictures(Result.read(runs / "one").__class__({}, [])) == []


def test_heat_maps_show_weights_beside_shares() -> None:
    facts = {"domain_weights": {"2": [0.75, 0.0], "0": [0.25, 0.0]}, "made": [4, 0]}
    figure = weights_figure(facts, np.array([[1, 3], [0, 0], [6, 2]]), ["cat", "dog"])
    left, right = (axes.images[0].get_array() for axes in figure.axes[:2])
    assert left[:, 0].tolist() == [0.25, 0.75], "clients in order"
    assert bool(np.all(np.ma.getmaskarray(left)[:, 1])), "no dog was made"
    assert right.tolist() == [[0.25, 0.75], [0.75, 0.25]]


def test_a_row_of_samples_for_each_round() -> None:
    figure = samples_figure(
        {4: torch.zeros(3, 1, 8, 8, dtype=torch.uint8), 1: torch.ones(3, 3, 8, 8, dtype=torch.uint8)}
    )
    shown = [axes.images[0].get_array().shape for axes in figure.axes]
    assert shown == [(8, 8, 3)] * 3 + [(8, 8)] * 3


def test_nothing_to_show_is_said() -> None:
    with pytest.raises(UsageError, match="empty gallery"):
        samples_figure({})
    with pytest.raises(UsageError, match="no round tells"):
        correlation_figure([{"round": 1, "facts": {}}])
