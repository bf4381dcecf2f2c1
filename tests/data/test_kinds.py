"""Kinds of data: what becomes of stored samples, with numbers derived by hand."""

import math

import pytest
import torch

from fedstill.core.errors import DataError
from fedstill.core.kind import Kind, kind_of
from fedstill.data import Samples, load
from fedstill.data.kinds import Image, Plain, Series, Table, Tokens
from fedstill.data.samples import Dataset

NAN = math.nan
ROWS = Table(("age", "weight"), (40.0, 70.0), (10.0, 5.0), ("weight",), ("sex", "cp"), (("f", "m"), ("a", "b", "c")))
EVERY: list[Kind] = [
    Image((3, 8, 8), (0.1, 0.2, 0.3), (0.5, 0.5, 0.5)),
    Series((2, 16), (1.0, -1.0), (2.0, 0.5), ("x", "y")),
    ROWS,
    Tokens(12, 50, 8),
    Plain((2, 3, 4, 5), 1.5, 2.0),
]
every_kind = pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.plural)


@every_kind
def test_a_kind_is_written_down_and_read_back(kind: Kind) -> None:
    assert kind_of(kind.plain()) == kind


@every_kind
def test_plain_noise_and_stored_samples_have_the_form_of_inputs(kind: Kind) -> None:
    noise = kind.noise(5, torch.Generator().manual_seed(0))
    inputs = Samples(kind.blank(5), torch.zeros(5, dtype=torch.int64), kind).inputs()
    assert noise.shape == inputs.shape == (5, *kind.shape)
    assert noise.dtype == inputs.dtype
    assert noise.unique(dim=0).shape[0] == 5, "no two are alike"


def test_series_are_normalised_by_channel() -> None:
    """(5 − 1)/2 = 2 and (0 + 1)/.5 = 2."""
    x = torch.stack([torch.full((16,), 5.0), torch.zeros(16)])[None]
    assert EVERY[1].inputs(x).unique().tolist() == [2.0]
    assert torch.equal(EVERY[1].shown(EVERY[1].inputs(x)), x)


def test_a_row_becomes_numbers_marks_and_blocks() -> None:
    """(60 − 40)/10 = 2, a missing weight is the mean with a mark, m is the second of two, b the second of three."""
    row = torch.tensor([[60.0, NAN, 1.0, 1.0]])
    assert ROWS.inputs(row).tolist() == [[2.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0]]
    assert ROWS.shape == (8,)
    again = ROWS.shown(ROWS.inputs(row))[0]
    assert again[[0, 2, 3]].tolist() == [60.0, 1.0, 1.0]
    assert again[1].isnan()


def test_a_missing_category_has_an_empty_block_and_an_outlier_is_held_back() -> None:
    """(10⁹ − 40)/10 is beyond ten deviations: 10."""
    inputs = ROWS.inputs(torch.tensor([[1e9, 70.0, NAN, 2.0]]))[0]
    assert inputs.tolist() == [10.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]


def test_a_table_measures_what_is_there() -> None:
    """Of 1, 3 and a gap: mean 2, deviation 1; a column without any number: mean 0, deviation 1."""
    import numpy as np

    kind = Table.of(np.array([[1, NAN], [3, NAN], [NAN, NAN]], np.float32), ("a", "b"))
    assert (kind.mean, kind.std, kind.missing) == ((2.0, 0.0), (1.0, 1.0), ("a", "b"))


@every_kind
def test_noise_spoils_the_rows_named_and_stays_in_range(kind: Kind) -> None:
    stream = torch.Generator().manual_seed(1)
    x = kind.blank(40)
    if isinstance(kind, Table):
        x = torch.rand(40, 4, generator=stream) * torch.tensor([1, 1, 2, 3])
        x[:, 2:] = x[:, 2:].floor()
        x[3, 0] = NAN
    elif isinstance(kind, Tokens):
        x = torch.randint(1, 50, x.shape, generator=stream).to(x.dtype)
        x[:, -1] = 0
    elif not isinstance(kind, Image):
        x = torch.rand(x.shape, generator=stream)
    rows = torch.arange(10, 30)
    noisy = kind.noised(x, rows, 1.0, stream)
    changed = (noisy != x).flatten(1).any(1) & ~x.isnan().flatten(1).any(1)
    assert changed.nonzero().flatten().tolist() == rows.tolist()
    assert kind.fault(noisy) is None
    assert noisy.nan_to_num(0).max() <= (255 if isinstance(kind, Image) else x.nan_to_num(0).max())
    if isinstance(kind, Tokens):
        assert torch.equal(noisy[:, -1], x[:, -1]), "what is empty stays empty"


@pytest.mark.parametrize(
    ("x", "kind", "line"),
    [
        (torch.zeros(3, 2, 15), EVERY[1], "must be N×2×16, float32"),
        (torch.zeros(3, 3), ROWS, "must be N×4, float32"),
        (torch.full((3, 12), 50, dtype=torch.int32), EVERY[3], "tokens from 50 to 50: must be ≥ 0 and < 50"),
        (torch.zeros(3, 5), EVERY[4], "must be N×2×3×4×5, float32"),
    ],
)
def test_samples_of_another_form_are_refused(x: torch.Tensor, kind: Kind, line: str) -> None:
    with pytest.raises(DataError) as error:
        Samples(x, torch.zeros(3, dtype=torch.int64), kind)
    assert line in str(error.value)


def loaded(x: object, **more: object) -> Dataset:
    return load({"x": x, "y": [0, 1, 0, 1], **more})


def test_an_array_s_shape_says_its_kind() -> None:
    assert isinstance(loaded(torch.zeros(4, 9, 128)).kind, Series)
    assert isinstance(loaded(torch.zeros(4, 9, 9)).kind, Image)
    assert isinstance(loaded(torch.zeros(4, 9, 128, dtype=torch.uint8)).kind, Image)
    assert isinstance(loaded(torch.zeros(4, 7)).kind, Table)
    assert isinstance(loaded(torch.zeros(4, 2, 3, 4, 5)).kind, Plain)
    assert isinstance(loaded(torch.zeros(4, 9, 9), kind="series").kind, Series)
    assert isinstance(loaded(torch.ones(4, 9, dtype=torch.int64), kind="tokens").kind, Tokens)


def test_codes_of_a_table_come_after_its_numbers() -> None:
    x = [[1, 20.0], [0, 30.0], [1, 40.0], [NAN, 50.0]]
    data = loaded(x, names=["sex", "age"], categories=["sex=f|m"], site=["a", "b", "a", "b"])
    kind = data.kind
    assert isinstance(kind, Table)
    assert (kind.numeric, kind.categorical, kind.categories) == (("age",), ("sex",), (("f", "m"),))
    assert data.train.x[:3].tolist() == [[20.0, 1.0], [30.0, 0.0], [40.0, 1.0]]
    assert data.sites is not None
    assert (data.sites.names, data.sites.train.tolist()) == (("a", "b"), [0, 1, 0, 1])


def test_a_code_without_a_category_names_row_and_column() -> None:
    with pytest.raises(DataError, match=r"row 2, sex: code 5, must be whole, ≥ 0 and < 2"):
        loaded([[0], [1], [5], [0]], names=["sex"], categories=["sex=f|m"])


def test_labels_may_be_texts() -> None:
    data = load({"x": torch.zeros(4, 7), "y": ["no", "yes", "no", "maybe"]})
    assert (data.class_names, data.train.y.tolist()) == (("maybe", "no", "yes"), [1, 2, 1, 0])
