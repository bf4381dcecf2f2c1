"""What generators imagine is drawn as it suits the kind of data."""

import numpy as np
from smallest import small_method

import fedstill
from fedstill.data.kinds import Series, Table
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


def test_a_run_on_a_table_leaves_what_its_clients_imagine(tmp_path) -> None:
    result = fedstill.run(
        small_method("fedkf"), data="breast-cancer", clients=2, active=1.0, rounds=1, partition="iid", workers="inline",
        out=tmp_path, name="r",
    )  # fmt: skip
    titles = [title for title, _ in imagined(result)]
    assert titles == ["imagined by client 0", "imagined by client 1"]
