"""The report in a real browser: silent console, no requests, and numbers that are those of metrics.jsonl."""

import json
import re
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
from chromium import dom, needs_browser, with_script
from looked_at import made, rows

from fedstill.report import html

pytestmark = needs_browser


@pytest.fixture(name="comparison")
def _comparison() -> Path:
    return made()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("page") / "report.html"
    html.report([made()], out)
    return out


def told(source: str, name: str) -> Any:
    """What a script left in the DOM."""
    found = re.search(rf'<pre id="{name}">(.*?)</pre>', source, re.S)
    assert found, f"no {name} in the DOM"
    return json.loads(found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))


SAY = (
    "const say = (name, value) => { const box = document.createElement('pre'); box.id = name; "
    "box.textContent = JSON.stringify(value); document.body.append(box); };"
)


def test_the_page_draws_itself_in_silence(page: Path, comparison: Path, tmp_path: Path) -> None:
    script = SAY + (
        "const all = (what) => [...document.querySelectorAll(what)].map((n) => n.textContent);"
        "say('worst', all('#clients-grid .worst'));"
        "say('lines', document.querySelectorAll('#curves-grid path.line').length);"
        "say('bars', all('#time-stack .bar'));"
        "say('sent', all('#traffic-stack .bar'));"
        "say('resources', performance.getEntriesByType('resource').map((r) => r.name));"
    )
    source, console = dom(with_script(page, script, tmp_path / "page.html"), tmp_path)
    assert console == []
    assert 'data-drawn="yes"' in source
    assert [name for name in told(source, "resources") if not name.startswith("data:")] == []
    assert told(source, "lines") == 16  # four charts, two methods, two models

    found = []
    for method in ("fedavg", "fedkf"):
        for model in ("active", "overall"):
            each = rows(comparison / f"{method}-1")[-1]["models"][model]["accuracy_per_client"]
            worst = min((a, k) for k, a in enumerate(each) if a is not None)
            found.append(f"worst: client {worst[1]}, {100 * worst[0]:.2f} %")
    assert told(source, "worst") == found

    seconds = [
        fmean(sum(sum(r["seconds"].values()) for r in rows(comparison / f"{m}-{s}")) for s in (1, 2))
        for m in ("fedavg", "fedkf")
    ]
    assert told(source, "bars") == [f"{s:.1f} s" for s in seconds]
    sent = [
        sum(sum(f.values()) for r in rows(comparison / f"{m}-1") for f in r["bytes"].values())
        for m in ("fedavg", "fedkf")
    ]
    assert told(source, "sent") == [f"{b / 1000:.1f} kB" if b < 1e6 else f"{b / 1e6:.1f} MB" for b in sent]


def test_rounds_to_target_are_counted_from_the_metrics(page: Path, comparison: Path, tmp_path: Path) -> None:
    """The target is FedAvg's (active) mean last AMP; FedAvg's own rounds are all three, by definition."""
    runs = {(m, s): rows(comparison / f"{m}-{s}") for m in ("fedavg", "fedkf") for s in (1, 2)}
    target = fmean(runs["fedavg", s][-1]["models"]["active"]["amp"] for s in (1, 2))
    script = SAY + (
        "const lines = [...document.querySelectorAll('#speed-body tr')];"
        "say('speed', lines.map((r) => [...r.children].map((c) => c.textContent)));"
    )
    source, _ = dom(with_script(page, script, tmp_path / "page.html"), tmp_path)
    lines = {line[0].split("  ")[0].strip(): line[1:3] for line in told(source, "speed")}
    assert lines["fedavg · active"] == ["3", "1.00 ×"]
    for method, model in (("fedavg", "overall"), ("fedkf", "active"), ("fedkf", "overall")):
        first = [
            next((row["round"] for row in runs[method, seed] if row["models"][model]["amp"] >= target), None)
            for seed in (1, 2)
        ]
        hit = [t for t in first if t is not None]
        if not hit:
            want = ["> 3", "< 1.00 ×"]
        else:
            spread = stdev(hit) if len(hit) > 1 else 0.0
            text = f"{fmean(hit):.1f} ± {spread:.1f}" if spread else f"{fmean(hit):.0f}"
            text += f" ({len(hit)} of 2 seeds)" if len(hit) < 2 else ""
            want = [text, f"{3 / fmean(hit):.2f} ×" if len(hit) == 2 else "–"]
        assert lines[f"{method} · {model}"] == want


def test_pointing_at_a_curve_tells_its_numbers_and_a_click_switches_it_off(
    page: Path, comparison: Path, tmp_path: Path
) -> None:
    script = SAY + (
        "const chart = document.querySelector('#curves-grid svg.chart'), box = chart.getBoundingClientRect();"
        "const where = { clientX: box.right - 12, clientY: box.top + 40, bubbles: true };"
        "chart.dispatchEvent(new PointerEvent('pointermove', where));"
        "const tip = document.querySelector('#curves-grid .tip');"
        "const lines = [...tip.querySelectorAll('div')].map((d) => [...d.children].map((c) => c.textContent));"
        "say('tip', [tip.hidden, tip.querySelector('b').textContent, lines]);"
        "document.querySelector('#legend button').click();"
        "say('after', document.querySelectorAll('#curves-grid path.line').length);"
        "say('pressed', document.querySelector('#legend button').getAttribute('aria-pressed'));"
    )
    source, console = dom(with_script(page, script, tmp_path / "page.html"), tmp_path, "--window-size=390,800")
    assert console == []
    hidden, head, lines = told(source, "tip")
    assert (hidden, head) == (False, "round 3")
    values = [rows(comparison / f"fedkf-{s}")[-1]["models"]["overall"]["amp"] for s in (1, 2)]
    spread = f" ± {100 * stdev(values):.2f}" if stdev(values) else ""
    assert ["", "fedkf · overall", f"{100 * fmean(values):.2f}{spread}"] in lines
    assert (told(source, "after"), told(source, "pressed")) == (12, "false")


def test_every_chart_gives_its_numbers_as_csv_and_itself_as_a_picture(
    page: Path, comparison: Path, tmp_path: Path
) -> None:
    """Four curves, four bar charts, AMP against bytes, bytes by field, time, who holds what: each has both buttons."""
    script = SAY + (
        "const files = [];"
        "const asked = [...document.querySelectorAll('.save button')];"
        "const read = (blob) => blob.arrayBuffer().then((b) => [...new Uint8Array(b)]);"
        "saving.offer = (name, blob) => { files.push(read(blob).then((b) => [name, b])); };"
        "say('charts', document.querySelectorAll('svg.chart').length);"
        "asked.forEach((button) => button.click());"
        "setTimeout(() => Promise.all(files).then((all) => {"
        "const text = (b) => new TextDecoder().decode(new Uint8Array(b));"
        "say('csv', all.filter(([n]) => n.endsWith('csv')).map(([n, b]) => [n, text(b)]));"
        "say('png', all.filter(([n]) => n.endsWith('png')).map(([n, b]) => [n, b.slice(0, 24)]));"
        "}), 2000);"
    )
    source, console = dom(with_script(page, script, tmp_path / "page.html"), tmp_path)
    assert console == []
    tables, pictures = dict(told(source, "csv")), dict(told(source, "png"))
    assert len(told(source, "csv")) == told(source, "charts") + 2 == 12  # and two that are bars of HTML
    assert len([name for name in pictures if not name.startswith("fed")]) >= 8
    for name, head in pictures.items():
        assert bytes(head[:8]) == b"\x89PNG\r\n\x1a\n", name
        width, height = (int.from_bytes(head[i : i + 4], "big") for i in (16, 20))
        assert min(width, height) > 60, name
    lines = tables["amp.csv"].splitlines()
    assert lines[0] == "line,round,AMP (mean),spread"
    values = [rows(comparison / f"fedkf-{s}")[-1]["models"]["overall"]["amp"] for s in (1, 2)]
    label, place, value, spread = next(line for line in lines if line.startswith("fedkf · overall,3,")).split(",")
    assert (label, place) == ("fedkf · overall", "3")
    assert float(value) == pytest.approx(100 * fmean(values))
    assert float(spread) == pytest.approx(100 * stdev(values))
    held = [line.split(",") for line in tables["who-holds-what.csv"].splitlines()]
    counts = json.loads((comparison / "fedavg-1" / "partition.json").read_text())["counts"]
    assert held[1:] == [[str(k), *map(str, row)] for k, row in enumerate(counts)]
    parts = [line.split(",") for line in tables["bytes-by-field.csv"].splitlines()[1:]]
    sent = {(experiment, part): float(value) for experiment, part, value in parts}
    up = [sum(r["bytes"]["up"]["weights"] for r in rows(comparison / f"fedavg-{s}")) for s in (1, 2)]
    assert sent["fedavg", "weights ↑"] == fmean(up)


def test_numbers_are_rounded_as_python_rounds_them(page: Path, tmp_path: Path) -> None:
    """Ties go to the even digit in both: 0.125 → 0.12, 0.375 → 0.38, 84.125 → 84.12."""
    numbers = [0.125, 0.375, 84.125, 84.135, 2.5, 0.005, 1e-9, 99.995, 84.16666666666667, -0.125, 1000 / 3]
    script = SAY + f"say('fixed', {json.dumps(numbers)}.flatMap((x) => [2, 1, 0].map((d) => charts.fixed(x, d))));"
    source, _ = dom(with_script(page, script, tmp_path / "page.html"), tmp_path)
    assert told(source, "fixed") == [f"{x:.{d}f}" for x in numbers for d in (2, 1, 0)]


def test_nothing_is_wider_than_a_phone(page: Path, tmp_path: Path) -> None:
    """In a frame of 390 pixels (a window cannot be that narrow everywhere) the page does not scroll sideways."""
    (tmp_path / "inner.html").write_text(page.read_text())
    outer = tmp_path / "outer.html"
    measure = SAY + (
        "const frame = document.querySelector('iframe');"
        "frame.onload = () => setTimeout(() => { const inside = frame.contentDocument.documentElement;"
        "say('size', [inside.scrollWidth, inside.clientWidth]); }, 300);"
    )
    frame = '<iframe src="inner.html" width="390" height="800"></iframe>'
    outer.write_text(f"<body>{frame}<script>{measure}</script></body>")
    source, _ = dom(outer, tmp_path, "--allow-file-access-from-files")
    wide, there = told(source, "size")
    assert there == 390
    assert wide <= there
