"""The command `distil`: several models that exist already become one."""

from pathlib import Path
from typing import Annotated

import typer

from fedstill.cli_app import Json, app, print_json


@app.command("distil")
def distil_models(
    files: Annotated[list[Path], typer.Argument(help="Models that `fedstill export` wrote (.safetensors).")],
    out: Annotated[Path, typer.Option(help="Where the new model goes (.safetensors).")] = Path("distilled.safetensors"),
    method: Annotated[str, typer.Option(help="co-boosting or dense.")] = "co-boosting",
    model: Annotated[str | None, typer.Option(help="The network to be made (default: the first file's).")] = None,
    models: Annotated[str, typer.Option(help="The files' networks, by commas, where they do not say.")] = "",
    seed: Annotated[int, typer.Option(min=0, help="Seed of every random stream.")] = 1,
    set_: Annotated[list[str] | None, typer.Option("--set", help="A setting of the method: name=value.")] = None,
    as_json: Json = False,
) -> None:
    """Make one model out of several, without data; their networks may differ."""
    from fedstill.experiment.distil import distil, fusion

    settings = {name: value for name, _, value in (pair.partition("=") for pair in set_ or [])}
    recipes = [name for name in models.split(",") if name]
    made = distil(files, out, fusion(method, settings), model=model, recipes=recipes, seed=seed)
    if as_json:
        print_json(made)
        return
    for path, share in made["shares"].items():
        print(f"weight {share:.3f} in the ensemble: {path}")
    print(f"{made['model']}: {made['network']}, agrees with the ensemble on {made['agreement']:.1%} of made samples")
