"""The command `fedstill` itself: the app that every file of commands joins, and what these files share."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    name="fedstill",
    help="Federated knowledge distillation: train together on data that differ and may not move.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",  # in rich's own markup a default like [mnist-5k] would be read as a style
    context_settings={"help_option_names": ["-h", "--help"]},
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else there.")]
Model = Annotated[Path, typer.Argument(help="The run's folder, or a .safetensors file that export or distil wrote.")]
Which = Annotated[str | None, typer.Option("--model", help="overall, active … or a client's number. [best known]")]
Tag = Annotated[list[str] | None, typer.Option(help="Of runs: only those with this tag, again for more.")]


def _version(asked: bool) -> None:
    if asked:
        import fedstill

        print(f"fedstill {fedstill.__version__}")
        raise typer.Exit


@app.callback()
def fedstill_itself(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Print the version and leave.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error; it may stand behind any command.")
    ] = False,
) -> None:
    """Federated knowledge distillation: train together on data that differ and may not move."""


def names(*kinds: str, files: bool = False) -> Callable[[str], list[str]]:
    """A completion: everything of these kinds (see `fedstill ls`) that starts as the user has typed.

    With `files`, no name at all is offered where the word looks like a path, so that the shell completes files.
    """

    def complete(incomplete: str) -> list[str]:
        if files and incomplete.startswith((".", "/", "~")):
            return []
        from fedstill.report.catalogue import known

        return [name for kind in kinds for name in known(kind) if name.startswith(incomplete)]

    return complete


def choices(*words: str) -> Callable[[str], list[str]]:
    """A completion from a few words."""
    return lambda incomplete: [word for word in words if word.startswith(incomplete)]


def read_plan(what: str) -> dict[str, Any]:
    """The settings in an experiment's file, or a plan with the method of this name."""
    from fedstill.experiment.config import read

    return read(Path(what)) if what.endswith((".toml", ".json")) else {"method": {"name": what}}


def apply_settings(plan: dict[str, Any], settings: list[str]) -> None:
    """Put `name=value` pairs where they belong: `partition.alpha`, a field of the experiment, else of the method."""
    from dataclasses import fields

    from fedstill.core.errors import UsageError
    from fedstill.experiment.config import Experiment

    known = {f.name for f in fields(Experiment)}
    for pair in settings:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UsageError(f"--set {pair!r}: must be name=value")
        path = key.split(".")
        if path[0] not in known:
            path = ["method", *path]
        here = plan
        for step in path[:-1]:
            inner = here.get(step)
            if not isinstance(inner, str | dict | None):
                raise UsageError(f"--set {pair!r}: {step} = {inner} has no settings of its own; set {step} as a whole")
            here[step] = {"name": inner} if isinstance(inner, str) else dict(inner or {})
            here = here[step]
        here[path[-1]] = _inline_table(value)


def _inline_table(value: str) -> Any:
    """A setting's value; `{…}` and `[…]` are read as TOML, the rest stays text for the field's type to read."""
    import tomllib

    from fedstill.core.errors import UsageError

    if value[:1] not in "{[" or not value:
        return value
    try:
        return tomllib.loads(f"x = {value}")["x"]
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"--set …={value}: {error}") from None


def print_json(content: Any) -> None:
    """Print one JSON document, as `--json` promises."""
    print(json.dumps(content, indent=1, ensure_ascii=False))


def write_json(content: Any, file: Path) -> None:
    """Write one JSON document, all of it or nothing."""
    from fedstill.core.errors import RunError
    from fedstill.core.record import write

    try:
        write(file, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())
    except OSError as error:
        raise RunError(f"{file}: cannot write ({error.strerror or error})") from error


def finish(result: Any, as_json: bool) -> None:
    """Print the end of a run: a table, or one JSON document."""
    from fedstill.report.terminal import show_result

    if as_json:
        print_json(result.summary())
    else:
        show_result(result)
