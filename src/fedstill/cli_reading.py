"""Options that say how a table is read, the same for every command that reads data."""

from typing import Annotated, Any

import typer

Label = Annotated[str | None, typer.Option(help="Of a table: the column of the classes.")]
SiteColumn = Annotated[
    str | None, typer.Option("--site", help="Of a table: the column of the sites; each is a client.")
]
Time = Annotated[str | None, typer.Option(help="Of a table: the column of time; rows become windows.")]
Window = Annotated[int | None, typer.Option(help="Rows of a window.")]
Step = Annotated[int | None, typer.Option(help="Rows from one window to the next. [the window]")]
Text = Annotated[str | None, typer.Option(help="Of a table: the column of texts.")]
Ignore = Annotated[str | None, typer.Option(help="Of a table: comma-separated columns that are not read.")]
KindOf = Annotated[str | None, typer.Option("--kind", help="image, series, table, tokens or plain. [by shape]")]
Resize = Annotated[int | None, typer.Option(help="Scale images of an image folder to this side.")]


def reading_of(**told: Any) -> Any:
    """A reading from the options that were given; None where none was."""
    from fedstill.core.value import build
    from fedstill.data.reading import Reading

    known = {name: value for name, value in told.items() if value is not None}
    return build(Reading, known) if known else None
