"""Every cell of every preset is an experiment that can be run, and every number stands where a cell is."""

from pathlib import Path

import pytest

from fedstill.core.method import methods
from fedstill.experiment.presets import RUNS, presets, read_preset
from fedstill.experiment.reproduce import plan
from fedstill.experiment.table_metrics import check
from fedstill.models import models


@pytest.mark.parametrize("full", [False, True], ids=["small", "full"])
@pytest.mark.parametrize("name", presets())
def test_every_cell_is_an_experiment(name: str, full: bool, tmp_path: Path) -> None:
    preset = read_preset(name)
    entries = plan(preset, tmp_path, full=full)
    assert len(entries) == len({(e.cell.row, e.cell.column) for e in entries}) > 0
    for entry in entries:
        if not entry.plans:
            assert entry.why_not
            assert entry.cell.settings["method"]["name"] not in methods or "attack" in entry.why_not
            continue
        plan_ = entry.plans[0]
        wanted = [plan_.model, plan_.server_model, *plan_.models]
        assert all(model in models or model == "auto" for model in wanted if model is not None)
        assert bool(entry.jobs) == (preset.kind not in ("partition", "passes"))


@pytest.mark.parametrize("name", presets())
def test_the_papers_numbers_are_those_of_metrics_the_cell_shows(name: str) -> None:
    for cell in read_preset(name).cells():
        assert set(cell.paper) <= set(cell.metrics)
        for metric, number in cell.paper.items():
            value = number[0] if isinstance(number, list) else number
            assert isinstance(value, int | float) or value[:1] in "<>", (cell.row, cell.column, metric)
            if metric in ("amp", "wlp", "accuracy", "personal", "global_logits"):
                assert 0 < value < 1, "a share, not per cent"


@pytest.mark.parametrize("name", [n for n in presets() if read_preset(n).kind in RUNS])
def test_every_metric_can_be_read(name: str) -> None:
    asked = {metric for cell in read_preset(name).cells() for metric in cell.metrics}
    for metric in asked:
        check(metric)


def test_every_method_of_the_board_has_a_tuned_rate() -> None:
    """The board says that the rate was chosen by the same trials for all but those that are made for one round."""
    wanted = {name for name in methods if not methods[name].one_round}
    assert set(read_preset("leaderboard/board").content["tuned"]) == wanted
