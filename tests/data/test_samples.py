"""Samples, batches, data sets: numbers derived by hand."""

import pickle

import numpy as np
import pytest
import torch
from smallest import images

from fedstill.core.errors import DataError, UsageError
from fedstill.data import Dataset, Samples, batches
from fedstill.data.pixels import fit, fitted
from fedstill.data.samples import apportion


def grey(n: int = 6, side: int = 4, classes: int = 3) -> Samples:
    x = torch.arange(n, dtype=torch.uint8).view(n, 1, 1, 1).expand(n, 1, side, side).contiguous()
    return images(x, torch.arange(n) % classes, (0.5,), (0.25,))


def make(counts: list[int], side: int = 28) -> Dataset:
    y = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    train = images(torch.full((len(y), 1, side, side), 9, dtype=torch.uint8), y, (0.5,), (0.25,))
    return Dataset("toy", train, train[:2], len(counts), tuple(map(str, range(len(counts)))))


def test_images_are_normalised_by_channel():
    """x = 51 is 0.2 of 255: (0.2 − 0.1)/0.5 = 0.2 and (0.2 − 0.4)/0.1 = −2."""
    s = images(torch.full((1, 2, 1, 1), 51, dtype=torch.uint8), torch.tensor([0]), (0.1, 0.4), (0.5, 0.1))
    torch.testing.assert_close(s.inputs().flatten(), torch.tensor([0.2, -2.0]))
    assert s.inputs().dtype == torch.float32


def test_float_images_are_not_divided_by_255_nor_changed():
    s = images(torch.full((2, 1, 1, 1), 3.0), torch.tensor([0, 1]), (1.0,), (2.0,))
    assert s.inputs().flatten().tolist() == [1.0, 1.0]
    assert s.x.flatten().tolist() == [3.0, 3.0]


@pytest.mark.parametrize(
    "index",
    [torch.tensor([4, 1]), np.array([4, 1]), [4, 1], slice(1, 5, 3), np.array([0, 1, 0, 0, 1, 0], bool)],
    ids=["tensor", "array", "list", "slice", "mask"],
)
def test_every_kind_of_index(index):
    chosen = grey()[index]
    assert sorted(chosen.x[:, 0, 0, 0].tolist()) == [1, 4]
    assert chosen.y.tolist() == [value % 3 for value in chosen.x[:, 0, 0, 0].tolist()]
    assert torch.equal(chosen.inputs(), grey().inputs(index))


def test_an_empty_index_gives_no_samples():
    assert len(grey()[np.array([])]) == len(grey()[[]]) == 0


def test_a_read_only_index_is_fine():
    index = np.array([1, 2])
    index.flags.writeable = False
    assert len(grey()[index]) == 2


def test_counts_shape_and_pickle():
    s = grey()
    s.inputs()
    again = pickle.loads(pickle.dumps(s))
    assert again.counts(5).tolist() == [2, 2, 2, 0, 0]
    assert again.shape == (1, 4, 4)


def test_concat_joins_and_refuses_what_does_not_agree():
    assert Samples.concat([grey(2), grey(3)]).y.tolist() == [0, 1, 0, 1, 2]
    with pytest.raises(DataError, match=r"cannot join uint8 images of 1×4×4 .* and uint8 images of 1×5×5"):
        Samples.concat([grey(), grey(side=5)])


@pytest.mark.parametrize(
    ("x", "y", "mean", "line"),
    [
        (torch.zeros(2, 4, 4), torch.tensor([0, 1]), (0.0,), "x is torch.float32 (2, 4, 4): must be N×C×H×W"),
        (torch.zeros(2, 1, 4, 4).double(), torch.tensor([0, 1]), (0.0,), "x is torch.float64"),
        (torch.zeros(2, 1, 4, 4), torch.tensor([0]), (0.0,), "y is torch.int64 (1,): must be int64 and of length 2"),
        (torch.zeros(2, 1, 4, 4), torch.tensor([0.0, 1.0]), (0.0,), "y is torch.float32"),
        (torch.zeros(2, 1, 4, 4), torch.tensor([0, 1]), (0.0, 0.0), "one entry for each of 1 channels"),
    ],
)
def test_wrong_tensors_are_refused(x, y, mean, line):
    with pytest.raises(DataError) as error:
        images(x, y, mean, mean)
    assert line in str(error.value)


@pytest.mark.parametrize(("n", "size", "lengths"), [(7, 3, [3, 3, 1]), (6, 3, [3, 3]), (2, 5, [2]), (0, 3, [])])
def test_batches_cover_each_index_once_an_epoch(n, size, lengths):
    drawn = list(batches(n, size, 2, torch.Generator().manual_seed(1)))
    assert [len(b) for b in drawn] == lengths * 2
    for epoch in (drawn[: len(lengths)], drawn[len(lengths) :]):
        assert sorted(i for b in epoch for i in b.tolist()) == list(range(n))


def test_batches_shuffle_anew_and_follow_the_generator():
    one, two = list(batches(50, 50, 2, torch.Generator().manual_seed(1)))
    assert one.tolist() != two.tolist()
    again = next(batches(50, 50, 2, torch.Generator().manual_seed(1)))
    assert one.tolist() == again.tolist()


def test_only_a_batch_of_one_is_dropped():
    lengths = [[len(b) for b in batches(n, 3, 1, torch.Generator(), drop_single=True)] for n in (7, 8, 1)]
    assert lengths == [[3, 3], [3, 3, 2], []]


def test_apportion_by_largest_remainders():
    """7 over 5:3:2 is 3.5, 2.1, 1.4: the whole parts make 6, the rest goes to .5."""
    assert apportion(np.array([5, 3, 2]), 7).tolist() == [4, 2, 1]
    assert apportion(np.array([1, 1, 0]), 2).tolist() == [1, 1, 0]


def test_subset_keeps_size_proportions_and_the_seed():
    data = make([60, 30, 10])
    small = data.subset(50, seed=3)
    assert small.train.counts(3).tolist() == [30, 15, 5]
    assert len(data.subset(7, 0).train) == 7
    assert len(data.subset(100, 0).train) == 100
    assert small.test is data.test

    def chosen(seed):
        marked = images(torch.arange(100).float().view(-1, 1, 1, 1), data.train.y, (0.0,), (1.0,))
        return Dataset("toy", marked, None, 3, data.class_names).subset(50, seed).train.x.flatten().tolist()

    assert chosen(3) == chosen(3) != chosen(4)
    assert len(set(chosen(3))) == 50


def test_a_balanced_subset():
    assert make([60, 30, 0, 10]).subset(30, 0, balanced=True).train.counts(4).tolist() == [10, 10, 0, 10]
    with pytest.raises(UsageError, match=r"samples = 60: needs 20 of class 2, toy has 10"):
        make([60, 30, 10]).subset(60, 0, balanced=True)


@pytest.mark.parametrize(
    ("samples", "line"), [(101, "samples = 101: toy has only 100 training samples"), (0, "samples = 0: must be ≥ 1")]
)
def test_subset_of_a_wrong_size(samples, line):
    with pytest.raises(UsageError) as error:
        make([60, 30, 10]).subset(samples, 0)
    assert str(error.value) == line


def test_28_gets_a_black_border_and_8_is_repeated():
    """28 + 2 + 2 = 32; 8 × 4 = 32, so pixel (1, 1) fills rows and columns 4 to 7."""
    padded = fitted(make([2, 2]), (32,))
    image = padded.train.x[0, 0]
    assert image.shape == (32, 32)
    assert image[2:30, 2:30].unique().tolist() == [9]
    assert image.sum() == 9 * 28 * 28
    assert padded.test is not None
    assert padded.test.shape == (1, 32, 32)

    eight = torch.zeros(2, 1, 8, 8, dtype=torch.uint8)
    eight[0, 0, 1, 1] = 7
    big = fit(images(eight, torch.tensor([0, 1]), (0.0,), (1.0,)), (32,)).x[0, 0]
    assert big[4:8, 4:8].unique().tolist() == [7]
    assert big.sum() == 7 * 16


def test_a_float_border_takes_the_darkest_value():
    x = torch.full((2, 1, 28, 28), 5.0)
    x[0, 0, 3, 3] = -1.5
    data = fitted(Dataset("toy", images(x, torch.tensor([0, 1]), (0.0,), (1.0,)), None, 2, ("a", "b")), (32,))
    assert data.train.x[1, 0, 0, 0] == -1.5
    assert data.test is None


def test_a_size_that_fits_stays_as_it_is():
    data = make([2, 2])
    assert fitted(data, (28, 32)).train is data.train
    assert fitted(data, None).train is data.train


def test_a_size_that_cannot_fit_names_the_models():
    with pytest.raises(UsageError) as error:
        fitted(make([2, 2], side=30), (32,))
    assert str(error.value) == (
        "images of 30×30 pixels: the model takes 32×32 (28×28 and 8×8 are brought to 32×32); resize them first"
    )
    with pytest.raises(UsageError, match=r"images of 30×30 pixels: the model takes 28×28 or 64×64; resize"):
        fitted(make([2, 2], side=30), (28, 64))
