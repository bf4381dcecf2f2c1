"""The command `fedstill`. It only reads its words, calls the package, and prints; torch is imported when needed."""

import csv
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from fedstill.cli_app import Json, Model, Tag, Which, app, apply_settings, choices, finish, names, print_json, read_plan
from fedstill.cli_fields import given, of_experiment, with_fields

TRACKED = ("per-class",)
"""What --track can also report."""


@app.command(cls=with_fields(of_experiment()))
def run(
    context: typer.Context,
    what: Annotated[
        str,
        typer.Argument(
            help="A method's name (see `fedstill ls methods`) or an experiment.toml.",
            autocompletion=names("methods", files=True),
        ),
    ],
    private: Annotated[
        list[str] | None,
        typer.Option(
            help="epsilon=8,delta=1e-5 for each sample; clients,epsilon=4,clip=1 for each client; again for both."
        ),
    ] = None,
    compress: Annotated[str | None, typer.Option(help="quantise,width=8 or top-k,share=0.1: fewer bytes up.")] = None,
    secure_sums: Annotated[bool, typer.Option(help="The server learns sums over the clients only.")] = False,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="name=value: any other setting of method or experiment.")
    ] = None,
    track: Annotated[
        str | None, typer.Option(help="per-class: also report accuracy per class.", autocompletion=choices(*TRACKED))
    ] = None,
    log: Annotated[
        str | None,
        typer.Option(
            help="tensorboard, mlflow, wandb or trackio: also log there (extras).",
            autocompletion=choices("tensorboard", "mlflow", "wandb", "trackio"),
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Where run folders go.")] = Path("runs"),
    name: Annotated[str | None, typer.Option(help="The run folder's name.")] = None,
    as_json: Json = False,
) -> None:
    """Run a method on data split over clients."""
    from fedstill.experiment.config import experiment
    from fedstill.experiment.run import start
    from fedstill.experiment.shorthand import wrapped
    from fedstill.report.logging import logged
    from fedstill.report.terminal import Live

    if track is not None and track not in TRACKED:
        raise typer.BadParameter(f"{track!r}: must be one of {', '.join(TRACKED)}", param_hint="--track")
    plan = read_plan(what)
    plan.update(given(context) | ({"per_class": True} if track else {}))
    if asked := wrapped(private, secure_sums, compress):
        plan["wrappers"] = [*plan.get("wrappers", []), *asked]
    apply_settings(plan, settings or [])
    with Live(quiet=as_json) as live, logged(live, log) as watcher:
        result = start(experiment(plan), out=out, name=name, watcher=watcher)
    finish(result, as_json)


@app.command(cls=with_fields(of_experiment("rounds", "workers")))
def resume(
    context: typer.Context,
    path: Annotated[Path, typer.Argument(help="The run's folder.")],
    as_json: Json = False,
) -> None:
    """Go on with a stopped run, to the same bits as if it had not been stopped."""
    from fedstill.experiment import run as runs
    from fedstill.report.terminal import Live

    with Live(quiet=as_json) as live:
        result = runs.resume(path, watcher=live, **given(context))
    finish(result, as_json)


@app.command()
def compare(
    paths: Annotated[list[Path], typer.Argument(help="Run folders.")],
    tag: Tag = None,
    as_json: Json = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table.")] = False,
    latex: Annotated[bool, typer.Option("--latex", help="Print a LaTeX table.")] = False,
) -> None:
    """Compare runs: mean ± spread over seeds, last and best round."""
    from fedstill.report import tables

    results = tables.collect(paths, tag or ())
    rows, metrics = tables.comparison(results), tables.metrics_of(results)
    if as_json:
        print_json(rows)
        return
    form = "csv" if csv else "markdown" if markdown else "latex" if latex else None
    if form:
        print(tables.text(rows, form, metrics))
    else:
        tables.show(rows, metrics)


@app.command("ls")
def list_things(
    what: Annotated[
        str,
        typer.Argument(
            help="methods, models, data, partitions, gathers, attacks, wrappers, paces, speeds, generators, measures, "
            "metrics, table-metrics, presets or runs.",
            autocompletion=names("kinds"),
        ),
    ] = "methods",
    tag: Tag = None,
    folder: Annotated[Path, typer.Option("--in", help="Of runs: the folder to look in.")] = Path("runs"),
    as_json: Json = False,
) -> None:
    """List what there is, with a line on each."""
    from fedstill.report import catalogue, run_list

    if tag and what != "runs":
        raise typer.BadParameter("only runs have tags", param_hint="--tag")
    rows = run_list.listing(folder, tag or ()) if what == "runs" else catalogue.listing(what)
    if as_json:
        print_json(rows)
    else:
        catalogue.show_listing(rows)


@app.command("tag")
def tag_run(
    path: Annotated[Path, typer.Argument(help="The run's folder.")],
    words: Annotated[list[str] | None, typer.Argument(help="Tags to add.")] = None,
    remove: Annotated[list[str] | None, typer.Option(help="A tag to take away, again for more.")] = None,
    note: Annotated[str | None, typer.Option(help="A sentence on the run, instead of the one it has.")] = None,
) -> None:
    """Give a run tags and a note; without either, say which it has."""
    from fedstill.experiment.annotate import annotate
    from fedstill.experiment.result import Result

    tags = annotate(path, words or (), remove or (), note)
    sentence = Result.read(path).experiment["note"]
    print(f"{path}: {', '.join(tags) or 'no tag'}{f' · {sentence}' if sentence else ''}")


@app.command()
def show(
    name: Annotated[
        str,
        typer.Argument(
            help="A method, or anything else that `fedstill ls` lists; package.module:Name for your own.",
            autocompletion=names("methods", "partitions", "gathers", "attacks", "presets"),
        ),
    ],
    toml: Annotated[bool, typer.Option("--toml", help="Print an experiment.toml to start from.")] = False,
    as_json: Json = False,
) -> None:
    """Show a method: its fields, defaults, paper, and what leaves a client."""
    from fedstill.report import catalogue

    if toml:
        print(catalogue.starter(name), end="")
    elif as_json:
        print_json(catalogue.card(name))
    else:
        catalogue.show_card(catalogue.card(name))


@app.command()
def predict(
    path: Model,
    file: Annotated[
        Path, typer.Argument(help="An image, a .npy file with a sample, an .npz file with samples x, or a table.")
    ],
    which: Which = None,
    as_json: Json = False,
) -> None:
    """Classify an image, the rows of a table or the samples of an .npz file with a run's model."""
    from fedstill.data.columns import is_table
    from fedstill.experiment.export import classify
    from fedstill.experiment.predict_rows import ARRAYS, classify_rows

    many = is_table(file) or file.suffix == ARRAYS
    answer = (classify_rows if many else classify)(path, file, which)
    if as_json:
        print_json(answer)
    elif "rows" in answer:
        lines = csv.writer(sys.stdout, lineterminator="\n")
        lines.writerow(answer["rows"][0])
        for row in answer["rows"]:
            number, label, share = row.values()
            lines.writerow([number, label, f"{share:.3f}"])
    else:
        for label, share in list(answer["probabilities"].items())[:3]:
            print(f"{label:<16} {share:.3f}")


@app.command()
def export(
    path: Model,
    target: Annotated[Path, typer.Argument(help="model.onnx, model.pt2 or model.safetensors.")],
    which: Which = None,
) -> None:
    """Write a run's model for use elsewhere."""
    from fedstill.experiment.export import write_model

    print(write_model(path, target, which))


@app.command()
def doctor(as_json: Json = False) -> None:
    """Say what is installed, how many cores are used, and which data sets were found where."""
    from fedstill.report import catalogue

    examination = catalogue.examination()
    if as_json:
        print_json(examination)
    else:
        catalogue.show_examination(examination)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line; errors are one line, exit codes 0, 1 (a run failed) and 2 (bad usage)."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    words = sys.argv[1:] if arguments is None else arguments
    plain = [word for word in words if word != "--debug"]
    sys.exit(_guarded(lambda: app(plain, standalone_mode=False), debug=plain != words))


def _guarded(call: Callable[[], Any], debug: bool) -> int:
    import click

    from fedstill.core.errors import FedstillError, RunError

    try:
        return int(call() or 0)
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except click.ClickException as error:
        error.show()
        return 2
    except (KeyboardInterrupt, click.Abort):
        print("stopped", file=sys.stderr)
        return 130
    except FedstillError as error:
        if debug:
            traceback.print_exc()
        print(f"fedstill: {error}", file=sys.stderr)
        return 1 if isinstance(error, RunError) else 2
    except BrokenPipeError:  # whoever read what is printed has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left is for nobody
        return 1
    except OSError as error:  # a full disk, a folder that may not be written
        if debug:
            traceback.print_exc()
        where = f"{error.filename}: " if error.filename else ""
        print(f"fedstill: {where}{error.strerror or error}", file=sys.stderr)
        return 1


from fedstill import (  # noqa: E402 (their commands join the app, after these)
    cli_advise,  # noqa: F401
    cli_audit,  # noqa: F401
    cli_data,  # noqa: F401
    cli_demo,  # noqa: F401
    cli_deploy,  # noqa: F401
    cli_distil,  # noqa: F401
    cli_publish,  # noqa: F401
    cli_reports,  # noqa: F401
    cli_results,  # noqa: F401
)
