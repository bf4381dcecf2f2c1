"""The command `distil`: several models that exist already become one."""

import json
from pathlib import Path
from typing import Annotated

import typer

from fedstill.cli_app import Debug, Json, app


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
    debug: Debug = False,
) -> None:
    """Make one model out of several, without data; their networks may differ."""
    from fedstill.experiment.distil import distil, fusion

    settings = {name: value for name, _, value in (pair.partition("=") for pair in set_ or [])}
    recipes = [name for name in models.split(",") if name]
    found = distil(files, out, fusion(method, settings), model=model, recipes=recipes, seed=seed)
    if as_json:
        print(json.dumps(found, indent=1, ensure_ascii=False))
        return
    for path, share in found["shares"].items():
        print(f"{share:.3f} of the ensemble: {path}")
    print(f"{found['model']}: {found['network']}, agrees with the ensemble on {found['agreement']:.1%} of made samples")
