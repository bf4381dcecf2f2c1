"""The partition picture shows the counts, without touching pyplot."""

import subprocess
import sys

import numpy as np
import pytest

from fedstill.core.errors import UsageError
from fedstill.report.figures.partition import partition_figure, save

COUNTS = np.array([[40, 0, 10], [0, 20, 0]])


def test_a_dot_for_every_holding_with_its_area():
    """40, 10 and 20 samples: areas as 4 : 1 : 2; totals 50 and 20 in the bars."""
    figure = partition_figure(COUNTS, ["a", "b", "c"])
    bars, dots = figure.axes
    scatter = dots.collections[0]
    assert scatter.get_offsets().tolist() == [[0, 0], [0, 2], [1, 1]]
    areas = scatter.get_sizes()
    assert (areas / areas[1]).tolist() == pytest.approx([4, 1, 2])
    assert [bar.get_height() for bar in bars.patches] == [50, 20]
    assert [label.get_text() for label in dots.get_yticklabels()] == ["a", "b", "c"]


@pytest.mark.parametrize(("clients", "classes"), [(1, 1), (20, 100), (1000, 10)])
def test_labels_never_crowd(clients, classes):
    figure = partition_figure(np.ones((clients, classes), int), [str(i) for i in range(classes)])
    width, height = figure.get_size_inches()
    dots = figure.axes[1]
    assert max(width, height) < 22.5
    assert len(dots.get_xticks()) * 5 * len(str(clients)) <= width * 72
    assert len(dots.get_yticks()) * 7 <= height * 72


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_saved_pictures_are_pictures(tmp_path, kind):
    figure = partition_figure(COUNTS, ["a", "b", "c"])
    path = save(figure, tmp_path / "new" / f"partition.{kind}")
    head = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[kind]
    assert path.read_bytes().startswith(head)


def test_wrong_pictures_are_told(tmp_path):
    figure = partition_figure(COUNTS, ["a", "b", "c"])
    with pytest.raises(UsageError, match=r"x.doc: cannot write a picture of kind 'doc'; known: .*png"):
        save(figure, tmp_path / "x.doc")
    with pytest.raises(UsageError, match="3 classes in the counts, 2 class names"):
        partition_figure(COUNTS, ["a", "b"])


def test_pyplot_is_never_imported():
    code = "import sys, fedstill.report.figures.partition; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
