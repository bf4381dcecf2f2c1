"""Every cell of every preset is an experiment that can be run, and every number stands where a cell is."""

from pathlib import Path

import pytest

from fedstill.core.method import methods
from fedstill.experiment.presets import RUNS, Cell, presets, read_preset
from fedstill.experiment.records import question
from fedstill.experiment.reproduce import plan
from fedstill.experiment.table_metrics import check
from fedstill.models import models
from fedstill.parts.trust import Identify


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
    """The board says that the rate was chosen by the same trials for all."""
    assert set(read_preset("leaderboard/board").content["tuned"]) == set(methods)


def cells_of(*papers: str) -> list[tuple[str, bool, Cell]]:
    """Every cell of these papers' presets, small and at the paper's size: preset, whether full, cell."""
    names = [name for name in presets() if name.partition("/")[0] in papers]
    return [(name, full, cell) for name in names for full in (False, True) for cell in read_preset(name).cells(full)]


def test_all_training_samples_train_where_the_paper_tests_globally() -> None:
    """The default would keep a fifth of every client's samples for a test of its own."""
    kept = {name for name, _, cell in cells_of("dafkd", "fedrad", "fedtkd") if cell.settings.get("local_test") != 0.0}
    assert not kept


def test_fedkfs_presets_have_one_split_for_all_seeds() -> None:
    several = {name for name, _, c in cells_of("fedkf") if c.settings["clients"] > 1 and "split_seed" not in c.settings}
    assert several == {"fedkf/price"}
    assert "every seed has a split of its own" in read_preset("fedkf/price").note


def test_letters_are_as_many_of_each_class_in_fedkfs_presets() -> None:
    letters = [(name, cell) for name, _, cell in cells_of("fedkf") if cell.settings["data"] == "emnist-letters"]
    assert {"fedkf/table4", "fedkf/table5", "fedkf/table8", "fedkf/table12"} <= {name for name, _ in letters}
    assert not {name for name, cell in letters if cell.settings.get("balanced") is not True}


OWN_SIZE = {"dafkd/epochs", "fedkf/price", "fedrad/small", "fedtkd/skew"}
"""Not in the papers: these have no size but their own."""


def test_the_papers_size_has_no_limit_of_samples() -> None:
    """FedKF's letters are the exception: 480 of each of 26 classes is what its paper takes."""
    limited = {
        (name, cell.column)
        for name, full, cell in cells_of("fedkf", "dafkd", "fedrad", "fedtkd")
        if full and name not in OWN_SIZE and cell.settings.get("samples", 0)
        if (name.partition("/")[0], cell.settings["data"], cell.settings["samples"])
        != ("fedkf", "emnist-letters", 26 * 480)
    }
    assert not limited


AS_WRITTEN = {"margin": 0.0, "centred": False, "memory": 0.0}
OURS = (", ours", ", levelled")
TABLES = ("fedtkd/table2", "fedtkd/table3", "fedtkd/table4", "fedtkd/table5", "fedtkd/table6")


def test_fedtkd_is_as_written_unless_the_row_says_ours() -> None:
    assert {key: getattr(Identify(), key) for key in AS_WRITTEN} == {"margin": 0.05, "centred": True, "memory": 0.8}
    for name, _, cell in cells_of("fedtkd"):
        if name in OWN_SIZE or cell.settings["method"]["name"] != "fedtkd":
            continue
        chosen = {key: value for key, value in cell.settings["method"]["gather"].items() if key in AS_WRITTEN}
        assert chosen == ({} if cell.row.endswith(OURS) else AS_WRITTEN), (name, cell.row)
        assert ("levelled" in cell.settings["method"]["gather"]) == cell.row.endswith(", levelled")


@pytest.mark.parametrize("name", TABLES)
def test_fedtkds_tables_have_both_forms(name: str) -> None:
    rows = {row["label"] for row in read_preset(name).content["rows"] if row["method"]["name"] == "fedtkd"}
    written = {label for label in rows if not label.endswith(OURS)}
    assert len(written) == 3, "10, 15 and 20 clients"
    levelled = set() if name == "fedtkd/table6" else {"10 clients, FedTKD, levelled"}
    assert rows == written | {f"{label}, ours" for label in written} | levelled


@pytest.mark.parametrize(
    ("figure", "table"),
    [
        ("dafkd/fig3", "dafkd/table1"),
        ("dafkd/fig4", "dafkd/table1"),
        ("fedkf/fig6", "fedkf/table12"),
        ("fedrad/fig5", "fedrad/table1"),
        ("fedtkd/fig11", "fedtkd/table2"),
        ("fedtkd/fig12", "fedtkd/table3"),
        ("fedtkd/fig13", "fedtkd/table3"),
        ("fedtkd/fig14", "fedtkd/table4"),
        ("fedtkd/fig15", "fedtkd/table5"),
        ("fedtkd/fig17", "fedtkd/table6"),
    ],
)
@pytest.mark.parametrize("full", [False, True], ids=["small", "full"])
def test_a_figure_shows_the_runs_of_the_table_that_its_note_names(
    figure: str, table: str, full: bool, tmp_path: Path
) -> None:
    def runs(name: str) -> set[tuple[str, int]]:
        return {(question(e.plans[0]), e.plans[0].rounds) for e in plan(read_preset(name), tmp_path, full=full)}

    assert runs(figure) <= runs(table)
