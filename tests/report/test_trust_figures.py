"""The pictures of trust show what was measured."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedstill.core.errors import UsageError
from fedstill.report.figures import trust
from fedstill.report.figures.partition import save

FACTS: dict[str, Any] = {
    "answered": [0, 1, 4],
    "trusted": [0, 4],
    "clusters": [1, 0, 1],
    "features": [[0.9, 0.8], [0.1, -0.2], [0.95, 0.7]],
    "feature_classes": [0, 2],
}


def test_the_heat_map_has_clients_as_rows_and_the_classes_that_occur_as_columns() -> None:
    axes = trust.features_figure(FACTS, malicious=[1], class_names=["cat", "dog", "owl"]).axes[0]
    assert [t.get_text() for t in axes.get_xticklabels()] == ["cat", "owl"]
    rows = axes.get_yticklabels()
    assert [t.get_text() for t in rows] == ["0", "1", "4"]
    assert [t.get_fontweight() for t in rows] == ["bold", "normal", "bold"]
    assert rows[1].get_color() != rows[0].get_color() == rows[2].get_color()
    np.testing.assert_allclose(axes.images[0].get_array(), FACTS["features"])


def test_clusters_are_apart_in_the_plane() -> None:
    axes = trust.clusters_figure(FACTS, malicious=[1]).axes[0]
    points = [tuple(c.get_offsets()[0]) for c in axes.collections[:3]]
    assert abs(points[0][0] - points[2][0]) < 0.2 < abs(points[0][0] - points[1][0])


def test_class_weights_are_lines_over_the_rounds() -> None:
    rows = [{"round": t, "facts": {"class_weights": [0.1 * t, 0.2]}} for t in (1, 2, 3)] + [{"round": 4, "facts": {}}]
    lines = trust.weights_figure(rows).axes[0].get_lines()
    assert [list(line.get_xdata()) for line in lines] == [[1, 2, 3]] * 2
    np.testing.assert_allclose(lines[0].get_ydata(), [0.1, 0.2, 0.3])


def test_rounds_without_trust_say_what_is_missing() -> None:
    with pytest.raises(UsageError, match="identify"):
        trust.features_figure({"answered": [1]})
    with pytest.raises(UsageError, match="FedTKD"):
        trust.weights_figure([{"round": 1, "facts": {}}])


def test_one_client_and_all_alike_can_be_drawn(tmp_path: Path) -> None:
    alike = {**FACTS, "features": [[0.5, 0.5]] * 3}
    alone = {"answered": [3], "trusted": [3], "clusters": [0], "features": [[0.5, 0.1]]}
    for number, facts in enumerate((alike, alone)):
        for draw in (trust.features_figure, trust.clusters_figure):
            assert save(draw(facts), tmp_path / f"{draw.__name__}{number}.svg").stat().st_size > 1000
