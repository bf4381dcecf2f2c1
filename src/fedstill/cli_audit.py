"""The command `audit`: attacks on what left the clients of a run. It joins the app."""

from pathlib import Path
from typing import Annotated

import typer

from fedstill.cli_app import Json, app, print_json


@app.command()
def audit(
    path: Annotated[Path, typer.Argument(help="The run's folder.")],
    shadows: Annotated[int, typer.Option(help="Shadow runs for the likelihood ratio (even; 0: none).")] = 4,
    as_json: Json = False,
) -> None:
    """Attack what left each client of a run, and say what was learnt."""
    from fedstill.experiment.audit import audit as attacked
    from fedstill.report.privacy import show_audit

    report = attacked(path, shadows)
    if as_json:
        print_json(report)
    else:
        show_audit(report)
