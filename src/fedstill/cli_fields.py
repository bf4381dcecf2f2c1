"""Options that come from the fields of values: meaning, default, type and choices are said once, by the field.

The fields are looked up when a command's options are first needed, so that `fedstill --version` imports no torch.
"""

import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal, Union, get_args, get_origin

import click
import typer
from typer.core import TyperCommand, TyperOption

from fedstill.cli_app import names

Found = Mapping[str, "FieldOption"]


class FieldOption(typing.NamedTuple):
    """What an option takes from its field."""

    hint: Any
    default: Any
    doc: str
    completes: str = ""
    """The kind of thing (see `fedstill ls`) that it names, or nothing."""


def with_fields(find: Callable[[], Found]) -> type[TyperCommand]:
    """A class of commands that also have the options that `find` returns by name; `given` has what was typed."""

    class FromFields(TyperCommand):
        """A command with options from fields."""

        made: tuple[str, ...] | None = None

        def get_params(self, ctx: click.Context) -> list[click.Parameter]:
            """The command's parameters, those from fields after its arguments."""
            if self.made is None:
                place = sum(isinstance(parameter, click.Argument) for parameter in self.params)
                options = [_option(name, known) for name, known in find().items()]
                self.params[place:place] = options
                self.made = tuple(str(option.name) for option in options)
            return super().get_params(ctx)

        def invoke(self, ctx: click.Context) -> Any:
            """Call the command; what was typed for fields is in the context."""
            known = {name: ctx.params.pop(name) for name in self.made or ()}
            ctx.obj = {name: value for name, value in known.items() if value not in (None, ())}
            return super().invoke(ctx)

    return FromFields


def given(context: typer.Context) -> dict[str, Any]:
    """What the user typed for options that come from fields, by their names."""
    return {name: ",".join(value) if isinstance(value, tuple) else value for name, value in context.obj.items()}


def of_experiment(*wanted: str, but: tuple[str, ...] = ()) -> Callable[[], Found]:
    """Where to find the options of an experiment: all but these, or those named, of a run that has its own defaults."""

    def find() -> Found:
        from fedstill.experiment.config import options

        options_found = _described({name: home for name, home in options().items() if name not in but}, wanted)
        return {name: option._replace(default=None) if wanted else option for name, option in options_found.items()}

    return find


def of_reading(*wanted: str) -> Callable[[], Found]:
    """Where to find the options that say how data are read: those named, or all."""

    def find() -> Found:
        from fedstill.data.reading import SHORT, Reading

        return _described(dict.fromkeys(SHORT, Reading), wanted)

    return find


def _described(homes: Mapping[str, type], wanted: tuple[str, ...]) -> Found:
    """Options by name, from the classes that have a field of that name."""
    from dataclasses import fields

    options = {}
    for name, home in homes.items():
        if not wanted or name in wanted:
            field = next(f for f in fields(home) if f.name == name)
            hint, option = typing.get_type_hints(home)[name], field.metadata.get("option")
            options[name] = FieldOption(
                hint, field.default, field.metadata["doc"], option if isinstance(option, str) else ""
            )
    return options


def _option(name: str, known: FieldOption) -> TyperOption:
    hint, several = _simple(known.hint)
    return TyperOption(
        param_decls=[name, f"--{name.replace('_', '-')}"],
        type=hint,
        multiple=several,
        required=False,
        help=f"{known.doc[:1].upper()}{known.doc[1:]}.{_shown(known.default)}",
        autocompletion=_completion(known.completes),
    )


def _simple(hint: Any) -> tuple[Any, bool]:
    """What click is to read a word as, and whether the option may be given several times."""
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(inner for inner in get_args(hint) if inner is not type(None))
    if get_origin(hint) is Literal:
        return click.Choice(get_args(hint)), False
    return hint if hint in (int, float) else str, get_origin(hint) is tuple


def _shown(default: Any) -> str:
    """A field's default at the end of its help; nothing where there is none.

    >>> _shown(20), _shown(None), _shown("")
    (' [20]', '', '')
    """
    from fedstill.core.value import Value, plain

    if default is None or default == () or default == "":
        return ""
    return f" [{plain(default)['name'] if isinstance(default, Value) else default}]"


def _completion(kinds: str) -> Callable[[click.Context, list[str], str], list[Any]] | None:
    """What the shell offers: names of a kind, and files where things of that kind are files too."""
    if not kinds:
        return None
    complete = names(kinds, files=kinds == "data")
    return lambda context, words, incomplete: list(complete(incomplete))
