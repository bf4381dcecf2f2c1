"""The command `advise`: which method fits. It joins the app."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from fedstill.cli_app import Json, app, print_json


@app.command()
def advise(
    share: Annotated[
        str, typer.Option(help="What may leave a client, by commas: weights, logits, statistics, generators.")
    ] = "weights",
    public: Annotated[
        bool, typer.Option("--public", help="There are public samples that all parties may have.")
    ] = False,
    different: Annotated[bool, typer.Option("--different-networks", help="Clients have different networks.")] = False,
    alpha: Annotated[
        float | None, typer.Option(help="How alike clients' labels are: 0.1 very unlike, 10 much alike. [not known]")
    ] = None,
    active: Annotated[float, typer.Option(help="Share of the clients that are active in a round.")] = 1.0,
    private: Annotated[bool, typer.Option("--private", help="A guarantee for each sample is wanted.")] = False,
    cost: Annotated[
        float | None, typer.Option(help="At most so many times FedAvg's processor time, where it was measured. [any]")
    ] = None,
    results: Annotated[
        Path | None, typer.Option(help="Where the records are. [the folder results, else the package's own]")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say which methods fit: three candidates, why, what leaves a client, what it costs, and the command."""
    from fedstill.report import advise as advice

    words = tuple(word.strip() for word in share.split(",") if word.strip())
    situation = advice.Situation(words, public, different, alpha, active, private, cost)
    ranking = advice.advise(situation, results)
    if as_json:
        print_json([asdict(one) for one in ranking])
    else:
        advice.show(ranking)
