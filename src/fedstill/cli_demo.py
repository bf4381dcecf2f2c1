"""The command `demo`: the first thing a newcomer runs."""

import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

from fedstill.cli_app import app

PLAN = {"data": "mnist-5k", "clients": 20, "active": 0.2, "alpha": 0.1}
METHODS = ("fedavg", "fedkf")
MARK = ".made-by-fedstill-demo"
"""The file that names the demo's own run folders beside it: only these are replaced."""


@app.command()
def demo(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of communication.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Seed of every random stream.")] = 1,
    out: Annotated[
        Path, typer.Option(help="Where the two runs and the report go; those of a demo before are replaced.")
    ] = Path("runs/demo"),
) -> None:
    """FedAvg against FedKF on real digits: live tables, a comparison, a report, and what it means."""
    from fedstill.experiment.config import experiment
    from fedstill.experiment.run import start
    from fedstill.report import html, tables
    from fedstill.report.terminal import Live

    make_room(out)
    results = {}
    out.mkdir(parents=True, exist_ok=True)
    (out / MARK).write_text("\n".join(METHODS) + "\n")
    for name in METHODS:
        with Live() as live:
            plan = experiment({"method": {"name": name, "lr": 0.05}, **PLAN, "rounds": rounds, "seed": seed})
            results[name] = start(plan, out=out, name=name, watcher=live)
    tables.show(tables.comparison(list(results.values())))
    html.report([out / name for name in METHODS], out / "report.html", "FedAvg and FedKF on digits")
    print(f"\nreport: {out / 'report.html'}")
    print(verdict(results["fedavg"], results["fedkf"]))


def make_room(out: Path) -> None:
    """Remove the runs of a demo before; refuse a place that holds something which the demo did not make."""
    from fedstill.report import html

    page, mark = out / "report.html", out / MARK
    own = mark.read_text().split() if mark.exists() else []
    others = [out / name for name in METHODS if (out / name).exists() and name not in own]
    others += [page] if page.exists() and not html.is_page(page) else []
    if others:
        raise typer.BadParameter(f"{others[0]} was not made by the demo; choose another folder", param_hint="--out")
    for name in METHODS:
        shutil.rmtree(out / name, ignore_errors=True)


def verdict(plain: Any, fused: Any) -> str:
    """What the user just saw, in sentences made of the runs' numbers: models of the same kind beside each other."""
    from fedstill.report.tables import metrics_of, summary
    from fedstill.report.terminal import size
    from fedstill.report.verdict import glossary, judged

    lines = ["20 clients whose digits differ. FedKF beside FedAvg, models of the same kind:"]
    both = [model for model in plain.models if model in fused.models]
    for model in both:
        rows = summary([fused], model, "FedKF"), summary([plain], model, "FedAvg")
        lines.append(f"  {model}: {judged(*rows, metrics_of([plain, fused]))}")
    lines.append(f"  ({glossary(both)})")
    lines.append(f"The clients sent {size(fused.bytes()['up'])} of weights up with FedKF, and no image left them.")
    return "\n".join(lines)
