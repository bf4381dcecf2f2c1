"""The commands `push` and `pull`: a run's model for others, with its card. They join the app."""

from pathlib import Path
from typing import Annotated

import typer

from fedstill.cli_app import Which, app


@app.command()
def push(
    path: Annotated[Path, typer.Argument(help="The run's folder.")],
    target: Annotated[str, typer.Argument(help="A new folder, or hf://owner/name on the Hugging Face hub.")],
    which: Which = None,
    public: Annotated[bool, typer.Option("--public", help="On the hub: anybody may see it. [only you]")] = False,
    license: Annotated[str | None, typer.Option(help="The model's licence, for its card: apache-2.0 …")] = None,
) -> None:
    """Publish a run's model with a card: data, metrics per client, what left the clients, privacy spent."""
    from fedstill.report.publish import push as published

    print(published(path, target, which, public=public, license=license))


@app.command()
def pull(
    source: Annotated[str, typer.Argument(help="hf://owner/name, or a folder that `fedstill push` wrote.")],
    folder: Annotated[Path, typer.Argument(help="Where the model goes: a new folder.")],
    revision: Annotated[str | None, typer.Option(help="On the hub: a commit, tag or branch.")] = None,
) -> None:
    """Get a published model; `predict` and `export` take its folder as they take a run's."""
    from fedstill.report.publish import pull as pulled

    print(pulled(source, folder, revision=revision))
