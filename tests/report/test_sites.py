"""The report says what each site gained over training alone."""

import json
import re
from pathlib import Path

import pytest

from fedstill.cli import main
from fedstill.report import html


def table(path: Path) -> Path:
    """Two hospitals of 30 patients each, whose outcome follows from one column."""
    rows = ["age,dose,outcome,hospital"]
    for k in range(60):
        rows.append(f"{20 + k % 17},{k % 5},{'ill' if k % 5 > 2 else 'well'},{'North <1>' if k % 2 else 'South'}")
    path.write_text("\n".join(rows) + "\n")
    return path


def test_every_site_is_named_with_what_it_gained(tmp_path: Path) -> None:
    """The number in brackets is the difference of the two runs' own numbers for that site."""
    data = table(tmp_path / "patients.csv")
    for name in ("fedavg", "local"):
        words = ["run", name, "--data", str(data), "--label", "outcome", "--site", "hospital", "--rounds", "2"]
        with pytest.raises(SystemExit) as left:
            main([*words, "--workers", "inline", "--out", str(tmp_path / "runs"), "--name", name, "--json"])
        assert left.value.code == 0

    def served(run: str, model: str) -> list[float]:
        last = (tmp_path / "runs" / run / "metrics.jsonl").read_text().splitlines()[-1]
        return json.loads(last)["models"][model]["accuracy_per_client"]

    html.report([tmp_path / "runs"], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    section = page[page.index('<section id="sites">') :].split("</section>")[0]
    assert "North &lt;1&gt;" in section
    together, alone = served("fedavg", "overall"), served("local", "personal")
    wanted = [f"({100 * (a - b):+.2f})" for a, b in zip(together, alone, strict=True)]
    shown = re.findall(r"\([+-][0-9.]+\)", section)
    assert all(number in shown for number in wanted)
    gaps = dict(
        zip(("North &lt;1&gt;", "South"), (100 * (a - b) for a, b in zip(together, alone, strict=True)), strict=True)
    )
    opening = page[page.index('class="verdict"') :].split("</p>")[0]
    assert "2 sites (North &lt;1&gt;, South) trained together with fedavg for 2 rounds." in opening
    for site, gap in gaps.items():
        told = f"{site} ({gap:+.2f} points)" if f"{gap:.2f}".strip("-") != "0.00" else f"the same at {site}"
        assert told in opening or (told.startswith("the same") and "the same at North &lt;1&gt;, South" in opening)
    assert "weights: model weights. All else stayed there. No noise was added" in opening
    assert "worst: ${called(worst.name)}" in page, "charts call a client by its name too"
