"""Pictures of a result, and how a notebook shows it."""

import shutil
from pathlib import Path

import pytest
from looked_at import made, rows

from fedstill.core.errors import UsageError
from fedstill.experiment.result import Result
from fedstill.report import html
from fedstill.report.figures import plots


@pytest.fixture(name="comparison")
def _comparison() -> Path:
    return made()


def test_a_result_plots_its_curves(comparison: Path) -> None:
    result = Result.read(comparison / "fedkf-1")
    figure = result.plot("amp", "fm")
    lines = figure.axes[0].get_lines()
    assert [line.get_label() for line in lines] == ["active", "overall"]
    want = [100 * row["models"]["overall"]["amp"] for row in rows(comparison / "fedkf-1")]
    assert list(lines[1].get_ydata()) == want
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["AMP ↑ (%)", "FM ↓ (10⁻³)"]
    assert len(result.plot().axes) == 4
    with pytest.raises(UsageError, match="unknown metric of this run 'speed'; known: accuracy, amp, fm, wlp"):
        result.plot("speed")


def test_a_result_is_a_frame(comparison: Path) -> None:
    frame = Result.read(comparison / "fedavg-1").to_frame()
    assert list(frame["round"]) == [1, 1, 2, 2, 3, 3]
    written = rows(comparison / "fedavg-1")[1]
    row = frame[(frame["round"] == 2) & (frame["model"] == "overall")].iloc[0]
    assert row["wlp"] == written["models"]["overall"]["wlp"]
    assert row["bytes_up"] == written["bytes"]["up"]["weights"]


def test_a_result_shows_itself(comparison: Path) -> None:
    shown = Result.read(comparison / "fedavg-1")._repr_html_()
    last = rows(comparison / "fedavg-1")[-1]["models"]["active"]
    assert f"<th>active</th><td>{100 * last['amp']:.2f}</td><td>{1000 * last['fm']:.2f}</td>" in shown
    assert "<b>fedavg</b> on digits, seed 1: 3 rounds" in shown


def test_every_run_has_a_partition_to_show(comparison: Path) -> None:
    (title, figure), *rest = plots.pictures(Result.read(comparison / "fedavg-1"))
    assert (title, rest) == ("samples of each class at each client", [])
    assert plots.inline(figure).startswith("data:image/svg+xml;base64,")
    assert plots.pictures(Result.read(comparison / "fedavg-1"), without=("partition",)) == []


def test_large_pictures_become_pixels(comparison: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "LARGE", 100)
    assert plots.inline(Result.read(comparison / "fedavg-1").plot("amp")).startswith("data:image/png;base64,")


def test_a_report_reads_the_run_and_no_data(comparison: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run elsewhere, where its data set cannot be loaded: the page has all its pictures."""
    run = tmp_path / "elsewhere"
    shutil.copytree(comparison / "fedkf-1", run)
    for name in ("fedstill.experiment.stage.load", "fedstill.data.load", "fedstill.experiment.gallery.stage"):
        monkeypatch.setattr(name, None)
    html.report([run], tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text().count("<figcaption>fedkf, seed 1: imagined by client") == 2


def test_clients_that_keep_a_generator_show_what_they_imagine(comparison: Path) -> None:
    found = dict(plots.pictures(Result.read(comparison / "fedkf-1"), without=("partition",)))
    active = sorted({client for row in rows(comparison / "fedkf-1") for client in row["active"]})
    assert list(found) == [f"imagined by client {client}" for client in active[:2]]
    image = found[f"imagined by client {active[0]}"].axes[0].get_images()[0].get_array()
    assert image.shape == (8, 8)
    assert 0 <= image.min() < image.max() <= 1
