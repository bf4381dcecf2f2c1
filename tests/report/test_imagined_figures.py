"""What generators imagine is drawn as it suits the kind of data."""

import numpy as np
from smallest import small_method

import fedstill
from fedstill.data import load
from fedstill.data.kinds import Series, Table
from fedstill.experiment.gallery import REAL, read_gallery
from fedstill.report.figures.imagined import rows_figure, series_figure
from fedstill.report.figures.plots import imagined


def test_series_are_lines_over_the_band_of_the_data() -> None:
    """Two channels, six of ten series each; the band of the first is 3 ± 2."""
    figure = series_figure(Series((2, 5), (3.0, 0.0), (2.0, 1.0), ("ax", "ay")), np.zeros((10, 2, 5)))
    first = figure.axes[0]
    assert [axes.get_title() for axes in figure.axes] == ["ax", "ay"]
    assert len(first.get_lines()) == 6
    low, high = first.patches[0].get_extents().intervaly
    assert first.transData.inverted().transform([[0, low], [0, high]])[:, 1].tolist() == [1.0, 5.0]


def test_rows_are_histograms_and_shares_of_categories() -> None:
    """Of four rows three are m: bars of .25 and .75."""
    kind = Table(("age",), (50.0,), (10.0,), (), ("sex",), (("f", "m"),))
    figure = rows_figure(kind, np.array([[40.0, 0], [50.0, 1], [60.0, 1], [np.nan, 1]]))
    assert [axes.get_title() for axes in figure.axes] == ["age", "sex"]
    assert [patch.get_height() for patch in figure.axes[1].patches] == [0.25, 0.75]


def test_real_series_stand_beside_imagined_ones() -> None:
    """Six of ten imagined at 0, and of eight real ones (1 … 8) six from the first to the last: 1, 2, 3, 5, 6, 8."""
    real = np.arange(1.0, 9.0)[:, None, None] * np.ones((8, 1, 5))
    (axes,) = series_figure(Series((1, 5), (3.0,), (2.0,), ("ax",)), np.zeros((10, 1, 5)), real).axes
    drawn = [line.get_ydata()[0] for line in axes.get_lines()]
    assert drawn == [1.0, 2.0, 3.0, 5.0, 6.0, 8.0] + [0.0] * 6
    assert [line.get_linestyle() for line in axes.get_lines()] == ["--"] * 6 + ["-"] * 6


def test_real_rows_are_outlines_over_imagined_ones() -> None:
    """Imagined: all f. Real: of two rows one each."""
    kind = Table((), (), (), (), ("sex",), (("f", "m"),))
    (axes,) = rows_figure(kind, np.zeros((4, 1)), np.array([[0.0], [1.0]])).axes
    assert [patch.get_height() for patch in axes.patches] == [1.0, 0.0, 0.5, 0.5]
    assert [patch.get_fill() for patch in axes.patches] == [True, True, False, False]


def test_a_run_on_a_table_leaves_what_its_clients_imagine(tmp_path) -> None:
    result = fedstill.run(
        small_method("fedkf"), data="breast-cancer", clients=2, active=1.0, rounds=1, partition="iid", workers="inline",
        out=tmp_path, name="r",
    )  # fmt: skip
    assert result.run_dir is not None
    real = read_gallery(result.run_dir)[REAL]
    rows = np.concatenate([load("breast-cancer").train.x.numpy(), load("breast-cancer").test.x.numpy()])
    assert real.shape == (64, rows.shape[1])
    assert all((np.abs(rows - row) < 1e-3 * (1 + np.abs(row))).all(1).any() for row in real), (
        "real rows, in their units"
    )
    titles = [title for title, _ in imagined(result)]
    assert titles == ["imagined by client 0", "imagined by client 1"]
