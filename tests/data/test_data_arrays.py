"""The user's own arrays: every form that is taken, every line that refuses one."""

import numpy as np
import pytest
import torch
from smallest import images

from fedstill.core.errors import DataError, UsageError
from fedstill.data import load, load_clients, pool

IMAGES = np.arange(4 * 6 * 5, dtype=np.uint8).reshape(4, 6, 5)
LABELS = np.array([0, 1, 0, 1])


@pytest.mark.parametrize(
    "x",
    [IMAGES, IMAGES[:, None], IMAGES[..., None], torch.from_numpy(IMAGES), IMAGES.astype(np.int64), IMAGES.tolist()],
    ids=["NHW", "NCHW", "NHWC", "torch", "int64", "list"],
)
def test_all_forms_mean_the_same_images(x):
    data = load((x, LABELS))
    assert data.train.x.dtype == torch.uint8
    assert torch.equal(data.train.x[:, 0], torch.from_numpy(IMAGES))
    assert (data.classes, data.class_names, data.test) == (2, ("0", "1"), None)


def test_colour_may_stand_first_or_last():
    x = np.random.default_rng(0).integers(0, 256, (4, 3, 6, 5), dtype=np.uint8)
    first, last = load((x, LABELS)), load((x.transpose(0, 2, 3, 1), LABELS))
    assert first.train.shape == last.train.shape == (3, 6, 5)
    assert torch.equal(first.train.x, last.train.x)
    many = load((np.zeros((4, 7, 6, 2), np.uint8), LABELS))
    assert many.train.shape == (2, 7, 6)


@pytest.mark.parametrize("kind", [np.uint8, np.float64, np.float16])
def test_own_arrays_get_their_own_normalisation(kind):
    """Normalised by its own mean and deviation, the training part has mean 0 and deviation 1 in each channel."""
    x = np.random.default_rng(0).integers(0, 200, (50, 2, 6, 5)).astype(kind)
    images = load((x, np.arange(50) % 2)).train.inputs()
    assert images.mean((0, 2, 3)).abs().max() < 1e-5
    assert (images.std((0, 2, 3), correction=0) - 1).abs().max() < 1e-5


def test_the_test_part_is_normalised_as_the_train_part():
    data = load({"x_train": IMAGES * 100.0, "y_train": LABELS, "x_test": IMAGES * 0.0, "y_test": LABELS})
    assert data.test is not None
    assert data.test.kind == data.train.kind


def test_constant_images_do_not_divide_by_zero():
    assert load((np.full((4, 6, 5), 7, np.uint8), LABELS)).train.inputs().abs().max() < 1e-6
    assert load((np.full((4, 6, 5), 7.5), LABELS)).train.inputs().abs().max() == 0


def test_read_only_and_bfloat16_arrays():
    fixed = IMAGES.copy()
    fixed.flags.writeable = False
    assert len(load((fixed, LABELS)).train) == 4
    assert load((torch.ones(4, 6, 5, dtype=torch.bfloat16), LABELS)).train.x.dtype == torch.float32


def test_labels_may_be_a_column_or_whole_floats():
    assert load((IMAGES, LABELS[:, None].astype(float))).train.y.tolist() == [0, 1, 0, 1]


def test_a_class_may_be_absent_from_the_train_part():
    data = load((IMAGES, LABELS, IMAGES, np.array([0, 1, 2, 3])))
    assert data.classes == 4
    assert data.train.counts(4).tolist() == [2, 2, 0, 0]


NAN = np.where(np.arange(4)[:, None, None] == 2, np.nan, IMAGES.astype(float))


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        ((IMAGES, LABELS[:3]), "own data, train part: 4 images but 3 labels"),
        ((NAN, LABELS), "own data, train part: x has NaN or infinite values, first in series 2"),
        ((NAN[:, None], LABELS), "own data, train part: x has NaN or infinite values, first in image 2"),
        ((NAN + np.inf, LABELS), "own data, train part: x has NaN or infinite values, first in series 0"),
        ((IMAGES * 1e300, LABELS), "own data, train part: x has NaN or infinite values, first in series 0"),
        ((IMAGES[:0], LABELS[:0]), "own data, train part: empty, no images"),
        ((IMAGES, LABELS[:0]), "own data, train part: empty, no labels"),
        (
            {"x": IMAGES[0], "y": LABELS, "kind": "image"},
            "own data, train part: x has shape (6, 5); must be N×H×W, N×H×W×C or N×C×H×W",
        ),
        ((IMAGES.astype(str), LABELS), "own data, train part: x is of type <U3; must be numbers"),
        (([[[1, 2]], [[1]]], [0, 1]), "own data, train part: x is ragged; all images must have one size"),
        ((IMAGES, LABELS - 1), "own data, train part: label -1 of sample 0; must be a whole number ≥ 0"),
        (
            (IMAGES, LABELS + 0.5),
            "own data, train part: label 0.5 of sample 0; must be a whole number ≥ 0 (regression is not supported)",
        ),
        ((IMAGES, [0, 1, np.nan, 1]), "own data, train part: label nan of sample 2; must be a whole number ≥ 0"),
        (
            {"x": IMAGES, "y": list("abab"), "classes": list("ac")},
            "own data: train label 'b' is none of a, c",
        ),
        (
            (IMAGES, np.eye(4)),
            "own data, train part: y has shape (4, 4); must be one class number a sample "
            "(several labels are not supported)",
        ),
        ((IMAGES, LABELS * 0 + 3), "own data: all training samples have label 3; at least two classes are needed"),
        (
            (IMAGES, LABELS * 0, IMAGES, LABELS),
            "own data: all training samples have label 0; at least two classes are needed",
        ),
        ((IMAGES, LABELS, IMAGES, LABELS * 5000), "own data: label 5000 is too large; number the classes 0, 1, 2, …"),
        ((IMAGES, LABELS * 5000), "own data: label 5000 is too large; number the classes 0, 1, 2, …"),
        (
            (IMAGES, LABELS, IMAGES[:, 1:], LABELS),
            "own data: train images are uint8 1×6×5, test images uint8 1×5×5",
        ),
        (
            (IMAGES, LABELS, IMAGES / 2, LABELS),
            "own data: train images are uint8 1×6×5, test images float32 1×6×5",
        ),
        ({"a": IMAGES, "y": LABELS}, "own data: no x_train inside, only a, y_train"),
        ({"x_train": IMAGES}, "own data: no y_train inside, only x_train"),
        ({}, "own data: no x_train inside, only nothing"),
        (
            {"x_train": IMAGES, "y_train": LABELS, "x_test": IMAGES},
            "own data: x_test and y_test belong together, one is missing",
        ),
    ],
)
def test_what_is_wrong_is_told_in_one_line(spec, line):
    with pytest.raises(DataError) as error:
        load(spec)
    assert str(error.value) == line


@pytest.mark.parametrize("spec", [(IMAGES, LABELS, IMAGES), 7, None, IMAGES])
def test_a_spec_that_means_nothing(spec):
    with pytest.raises(UsageError, match=r"data = .*: must be a name, a path, \(x_train, y_train\)"):
        load(spec)


def test_clients_share_one_normalisation():
    """Pixels 0 and 51 (= .2): pooled over 1 + 3 images, mean .15, variance .25·.15² + .75·.05² = .0075."""
    one = np.zeros((1, 4, 4), np.uint8)
    three = np.full((3, 4, 4), 51, np.uint8)
    clients = load_clients([(one, [0]), (three, [1, 1, 2])])
    assert clients[0].kind.mean == clients[1].kind.mean == pytest.approx((0.15,))
    assert clients[0].kind.std == clients[1].kind.std == pytest.approx((0.0075**0.5,))


def test_clients_as_samples_keep_a_common_normalisation():
    x = torch.randn(2, 1, 4, 4)
    own = [images(x, torch.tensor([0, 1]), (0.5,), (3.0,)) for _ in range(2)]
    assert [(c.kind.mean, c.kind.std) for c in load_clients(own)] == [((0.5,), (3.0,))] * 2


def test_identical_constant_clients():
    flat = np.full((2, 4, 4), 3.0)
    assert [c.kind.std for c in load_clients([(flat, [0, 1]), (flat + 0, [0, 1])])] == [(1.0,)] * 2


def test_pool_gives_each_client_its_own_again():
    clients = load_clients([(IMAGES, LABELS), (IMAGES[:2] + 1, [2, 1])])
    data, split = pool(clients)
    assert (data.classes, data.test, len(data.train)) == (3, None, 6)
    for client, part in zip(clients, split.parts, strict=True):
        assert torch.equal(data.train[part].x, client.x)
        assert torch.equal(data.train[part].y, client.y)
    assert split.counts(data.train.y.numpy(), 3).tolist() == [[2, 2, 0], [0, 1, 1]]


@pytest.mark.parametrize(
    ("clients", "line"),
    [
        ([], "no clients: give one (x, y) for each"),
        ([(IMAGES, LABELS), (IMAGES[:0], LABELS[:0])], "client 1: empty, no images"),
        ([(IMAGES, LABELS), 5], "client 1: is int; must be (x, y) or Samples"),
        (
            [(IMAGES, LABELS), (IMAGES[:, 1:], LABELS)],
            "client 1: images are uint8 1×5×5, those of client 0 uint8 1×6×5; they must agree",
        ),
        ([(IMAGES, LABELS), (NAN, LABELS)], "client 1: x has NaN or infinite values, first in image 2"),
        ([(IMAGES, LABELS * 0)], "clients: all training samples have label 0; at least two classes are needed"),
    ],
)
def test_wrong_clients_are_told_in_one_line(clients, line):
    with pytest.raises(DataError) as error:
        load_clients(clients)
    assert str(error.value) == line


def test_labels_that_begin_at_one_are_the_classes_that_occur():
    """Ten labels 1 … 10 are ten classes, numbered 0 … 9, each named by the user's own number."""
    data = load((np.zeros((10, 6, 5), np.uint8), np.arange(1, 11)))
    assert data.classes == 10
    assert data.class_names == tuple(map(str, range(1, 11)))
    assert data.train.y.tolist() == list(range(10))


def test_python_s_texts_are_labels_and_sites():
    """Frames hand texts over as objects; numbers among Python's objects are numbers."""
    data = load({"x": IMAGES, "y": np.array(["b", "a", "b", "a"], object), "site": np.array(list("yyxx"), object)})
    assert (data.class_names, data.train.y.tolist()) == (("a", "b"), [1, 0, 1, 0])
    assert (data.sites.names, data.sites.train.tolist()) == (("x", "y"), [1, 1, 0, 0])
    assert load((IMAGES, LABELS.astype(object))).train.y.tolist() == LABELS.tolist()


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"site": [1.0, 2.0, np.nan, np.nan]}, "own data, train part: sample 2 has no site (2 have none)"),
        ({"site": ["a", "b", None, "a"]}, "own data, train part: sample 2 has no site (1 have none)"),
        ({"site": ["a", np.nan, "b", "a"]}, "own data, train part: sample 1 has no site (1 have none)"),
        (
            {"site": np.array(["a", "b", 3, "a"], object)},
            "own data, train part: site 3 of sample 2 is no text, as others are",
        ),
        ({"y": ["a", None, "b", "a"]}, "own data, train part: sample 1 has no label (1 have none)"),
        ({"y": ["a", "b", np.nan, "a"]}, "own data, train part: sample 2 has no label (1 have none)"),
        (
            {"y": np.array(["a", 7, "b", "a"], object)},
            "own data, train part: label 7 of sample 1 is no text, as others are",
        ),
    ],
)
def test_a_label_or_site_that_is_missing_or_no_text_is_named(given, line):
    with pytest.raises(DataError) as error:
        load({"x": IMAGES, "y": LABELS, **given})
    assert str(error.value) == line


def test_a_quantity_is_not_taken_for_classes():
    with pytest.raises(DataError, match="y holds 300 different decimal numbers: a quantity, not classes"):
        load((np.zeros((300, 6, 5), np.uint8), np.arange(300, dtype=float)))
    assert load((np.zeros((300, 6, 5), np.uint8), np.arange(300.0) % 2)).classes == 2
