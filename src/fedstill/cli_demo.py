"""The command `demo`: the first thing a newcomer runs. It joins the app of `fedstill.cli`."""

import shutil
from pathlib import Path
from typing import Annotated, Any

import typer

from fedstill.cli import Debug, app

PLAN = {"data": "mnist-5k", "clients": 20, "active": 0.2, "alpha": 0.1}


@app.command()
def demo(
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of communication.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Seed of every random stream.")] = 1,
    out: Annotated[Path, typer.Option(help="Where the two runs and the report go; emptied first.")] = Path("runs/demo"),
    debug: Debug = False,
) -> None:
    """FedAvg against FedKF on real digits: live tables, a comparison, a report, and what it means."""
    from fedstill.experiment.config import experiment
    from fedstill.experiment.run import start
    from fedstill.report import html, tables
    from fedstill.report.terminal import Live

    if out.exists() and not (out / "fedavg").exists() and any(out.iterdir()):
        raise typer.BadParameter(f"{out} holds something else", param_hint="--out")
    shutil.rmtree(out, ignore_errors=True)
    results = {}
    for name in ("fedavg", "fedkf"):
        with Live() as live:
            plan = experiment({"method": {"name": name, "lr": 0.05}, **PLAN, "rounds": rounds, "seed": seed})
            results[name] = start(plan, out=out, name=name, watcher=live)
    tables.show(tables.comparison(list(results.values())))
    html.report([out], out / "report.html", "FedAvg and FedKF on digits")
    print(f"\nreport: {out / 'report.html'}")
    print(verdict(results["fedavg"], results["fedkf"]))


def verdict(plain: Any, fused: Any) -> str:
    """What the user just saw, in a sentence made of the runs' numbers."""
    from fedstill.report.terminal import size

    a, b = plain.last("active"), fused.last("overall")
    more = "better" if b["amp"] > a["amp"] else "worse"
    return (
        f"20 clients whose digits differ: FedKF served them {more} than FedAvg, on average {b['amp']:.1%} against "
        f"{a['amp']:.1%}, the worst client {b['wlp']:.1%} against {a['wlp']:.1%}, FM (unfairness) {b['fm']:.4f} "
        f"against {a['fm']:.4f}; together they sent {size(fused.bytes()['up'])} of weights up, and no image left them."
    )
