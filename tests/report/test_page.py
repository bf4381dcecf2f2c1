"""The report as a file: every number equals the run's metrics, and whatever is wrong with a folder is said in words."""

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
from looked_at import made, rows

from fedstill.core.errors import UsageError
from fedstill.report import html, watch


@pytest.fixture(name="comparison")
def _comparison() -> Path:
    return made()


class Tables(HTMLParser):
    """All table rows of a page: the row's data attributes, and each cell's text and data attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[dict[str, Any], list[tuple[dict[str, Any], str]]]] = []
        self.inside = False

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.rows.append((dict(attributes), []))
        if tag in ("td", "th") and self.rows:
            self.rows[-1][1].append((dict(attributes), ""))
            self.inside = True

    def handle_endtag(self, tag: str) -> None:
        self.inside = self.inside and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self.inside and self.rows and self.rows[-1][1]:
            marks, text = self.rows[-1][1][-1]
            self.rows[-1][1][-1] = (marks, text + data)


def tables(page: str) -> Tables:
    found = Tables()
    found.feed(page)
    return found


def shown(values: list[float], factor: float) -> str:
    spread = stdev(values) if len(values) > 1 else 0.0
    return f"{factor * fmean(values):.2f}" + (f" ± {factor * spread:.2f}" if spread else "")


def test_every_number_of_the_summary_is_the_metrics_last_line(comparison: Path, tmp_path: Path) -> None:
    assert html.report([comparison], tmp_path / "report.html") == []
    found = tables((tmp_path / "report.html").read_text())
    seen = 0
    for marks, cells in found.rows:
        if "data-label" not in marks or "data-chapter" not in marks:
            continue
        method, _, model = marks["data-label"].partition(" · ")
        last = [rows(comparison / f"{method}-{seed}")[-1]["models"][model] for seed in (1, 2)]
        for attributes, text in cells:
            metric = attributes.get("data-metric")
            if metric in ("amp", "fm", "wlp", "accuracy"):
                factor = 1000 if metric == "fm" else 100
                assert text == shown([m[metric] for m in last], factor), (method, model, metric)
                seen += 1
    assert seen == 16  # two methods, two models, four metrics


def test_best_and_second_are_marked(comparison: Path, tmp_path: Path) -> None:
    html.report([comparison], tmp_path / "report.html")
    cells = [
        (float(text.split()[0]), attributes.get("class", ""))
        for _, line in tables((tmp_path / "report.html").read_text()).rows
        for attributes, text in line
        if attributes.get("data-metric") == "amp"
    ]
    order = sorted({value for value, _ in cells}, reverse=True)
    assert {mark for value, mark in cells if value == order[0]} == {"best"}
    assert {mark for value, mark in cells if value == order[1]} == {"second"}
    assert {mark for value, mark in cells if value < order[1]} <= {""}


def test_what_left_a_client_is_the_ledgers(comparison: Path, tmp_path: Path) -> None:
    html.report([comparison], tmp_path / "report.html")
    uploads = [
        [text for _, text in cells]
        for marks, cells in tables((tmp_path / "report.html").read_text()).rows
        if marks.get("data-way") == "up"
    ]
    bytes_up = sum(row["bytes"]["up"]["weights"] for row in rows(comparison / "fedavg-1"))
    turns = sum(len(row["active"]) for row in rows(comparison / "fedavg-1"))
    each, whole = f"{bytes_up / turns / 1000:.1f} kB", f"{bytes_up / 1000:.1f} kB"
    assert ["fedavg", "left a client", "weights", "model weights", each, whole] in uploads
    assert {line[0] for line in uploads} == {"fedavg", "fedkf"}


def test_it_is_one_file_that_asks_for_nothing(comparison: Path, tmp_path: Path) -> None:
    html.report([comparison], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    addresses = set(re.findall(r"https?://[^\s\"'<>)]+", page))
    assert addresses <= {"http://www.w3.org/2000/svg"}  # a name, never fetched
    assert "default-src 'none'" in page
    assert not re.search(r"<(script|img|iframe|link)[^>]*\b(src|href)=\"(?!data:)", page)
    assert list(tmp_path.iterdir()) == [tmp_path / "report.html"]


def test_names_cannot_break_out_of_the_page(comparison: Path, tmp_path: Path) -> None:
    bad = tmp_path / "<img src=x onerror=alert(1)>"
    shutil.copytree(comparison / "fedavg-1", bad)
    html.report([bad], tmp_path / "report.html", title="</title><script>alert(2)</script>")
    page = (tmp_path / "report.html").read_text()
    assert "<img src=x" not in page
    assert "<script>alert(2)" not in page
    assert "&lt;script&gt;alert(2)" in page
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert data
    assert json.loads(data[1])["runs"][0]["name"] == str(bad)


def test_class_and_site_names_stay_text(comparison: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(comparison / "fedavg-1", run)
    split = json.loads((run / "partition.json").read_text())
    split["class_names"][0] = "</script><script>alert(3)</script>"
    split["notes"] = ["<b>bold</b>"]
    (run / "partition.json").write_text(json.dumps(split))
    html.report([run], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "<script>alert(3)" not in page
    assert "<b>bold" not in page
    assert "<title>Runs in &lt;script&gt;" in watch.page("Runs in <script>")


def test_replies_that_were_not_used_stand_at_the_top(comparison: Path, tmp_path: Path) -> None:
    html.report([comparison], tmp_path / "well.html")
    assert 'id="health"' not in (tmp_path / "well.html").read_text()
    run = tmp_path / "ill"
    shutil.copytree(comparison / "fedavg-1", run)
    lines = rows(run)
    client = lines[1]["active"][0]
    lines[1]["missing"] = {str(client): "its worker died, <twice>"}
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    html.report([run], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert page.index('id="health"') < page.index('id="summary"')
    assert f"round 2: 2 of 3 replies used; 1 missing (client {client}: its worker died, &lt;twice&gt;)" in page
    cells = [[text for _, text in line] for _, line in tables(page).rows if "8 of 9" in str(line)]
    assert cells[0][1:] == ["8 of 9", "0", "0", "0", "1"]  # used, diverging, refused, dropped, missing
    state = watch.Observatory(run).state()
    assert state["runs"][0]["health"][0] == "8 of 9 replies used; 1 missing"


def test_an_empty_folder_is_an_error_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nothing to show: .*no run in there"):
        html.report([tmp_path], tmp_path / "report.html")
    with pytest.raises(UsageError, match="no such folder"):
        html.report([tmp_path / "nowhere"], tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_half_written_runs_are_named_and_left_out(comparison: Path, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    shutil.copytree(comparison, runs)
    (runs / "fedkf-1" / "metrics.jsonl").unlink()  # has not ended a round
    (runs / "fedkf-2" / "experiment.json").write_text('{"method": {"na')  # cut off
    lines = (runs / "fedavg-2" / "metrics.jsonl").read_text().splitlines()
    (runs / "fedavg-2" / "metrics.jsonl").write_text("\n".join([*lines[:2], lines[2][:40]]))  # killed in round 3
    notes = "\n".join(html.report([runs], tmp_path / "report.html"))
    assert "fedkf-1: no evaluated round yet; left out" in notes
    assert "fedkf-2: cannot be read" in notes
    assert "fedavg-2: 2 of 3 rounds so far; left out of the means, since other seeds are further" in notes
    page = (tmp_path / "report.html").read_text()
    assert "fedkf-1: no evaluated round yet" in page
    amp = rows(runs / "fedavg-1")[-1]["models"]["active"]["amp"]
    assert f'data-metric="amp">{100 * amp:.2f}</td>' in page.replace(' class="best"', "").replace(' class="second"', "")


def test_runs_on_different_data_are_compared_within_each(comparison: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(comparison / "fedavg-1", other)
    plan = json.loads((other / "experiment.json").read_text())
    (other / "experiment.json").write_text(json.dumps({**plan, "data": "mnist-5k"}))
    html.report([comparison, other], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "Runs on different data sets (digits, mnist-5k): compared within each, never across." in page
    marks = [line[0]["data-chapter"] for line in tables(page).rows if "data-chapter" in line[0]]
    assert marks == ["digits"] * 4 + ["mnist-5k"] * 2


def test_fifty_runs_of_a_hundred_rounds_and_clients(comparison: Path, tmp_path: Path) -> None:
    """Ten methods' worth of settings × five seeds × 100 rounds × 100 clients: under 15 MB."""
    template = rows(comparison / "fedavg-1")[-1]
    plan = json.loads((comparison / "fedavg-1" / "experiment.json").read_text())
    share = [i / 100 for i in range(100)]
    counts = [[(7 * k + c) % 50 for c in range(10)] for k in range(100)]
    for number in range(10):
        for seed in range(5):
            run = tmp_path / "runs" / f"{number}-{seed}"
            run.mkdir(parents=True)
            settings = {
                **plan,
                "clients": 100,
                "rounds": 100,
                "seed": seed,
                "method": {**plan["method"], "lr": 0.01 * (number + 1)},
            }
            (run / "experiment.json").write_text(json.dumps(settings))
            names = [str(c) for c in range(10)]
            (run / "partition.json").write_text(
                json.dumps({"counts": counts[seed:] + counts[:seed], "class_names": names, "notes": []})
            )
            scores = {
                m: {**s, "accuracy_per_client": share, "amp": 1 / 3, "fm": 1 / 7} for m, s in template["models"].items()
            }
            line = {**template, "models": scores, "active": list(range(10))}
            (run / "metrics.jsonl").write_text("".join(json.dumps({**line, "round": t + 1}) + "\n" for t in range(100)))
    html.report([tmp_path / "runs"], tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size < 15e6
