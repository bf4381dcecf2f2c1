"""Values: frozen dataclasses whose fields know what they allow.

Methods, gathers, attacks and partitions are values. A value is printable, comparable, `replace`-able and picklable,
it checks itself when it is made, and it can be built from (and turned into) the plain dictionary of a config file.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Plan(Value):
    ...     lr: float = setting(0.01, gt=0, doc="step size")
    >>> Plan(lr=-1)
    Traceback (most recent call last):
    fedstill.core.errors.UsageError: lr = -1: must be > 0
    >>> build(Plan, {"lr": "0.5"})
    Plan(lr=0.5)
"""

import dataclasses
import math
import numbers
import operator
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from fedstill.core.errors import UsageError, unknown
from fedstill.core.registry import Registry

V = TypeVar("V")

_BOUNDS: dict[str, tuple[Callable[[Any, Any], bool], str]] = {
    "gt": (operator.gt, ">"),
    "ge": (operator.ge, "≥"),
    "lt": (operator.lt, "<"),
    "le": (operator.le, "≤"),
}


Decides = Literal["bits", "running", "reporting", "nothing"]
"""What a setting decides: a run's bits; only where and how fast it runs; only what is looked at; nothing at all."""


_PLAIN: dict[Any, tuple[type, str]] = {
    bool: (bool, "true or false"),
    int: (numbers.Integral, "a whole number"),
    float: (numbers.Real, "a number"),
    str: (str, "text"),
}
"""What a value of a plain field must be an instance of, and how that is said."""


def _optional(hint: Any) -> bool:
    """Is this `X | None`?"""
    return get_origin(hint) in (Union, types.UnionType) and type(None) in get_args(hint)


def setting(
    default: Any, *, doc: str = "", decides: Decides = "bits", option: bool | str = False, **bounds: float
) -> Any:
    """A field of a value.

    Args:
        default: its value when nothing is said.
        doc: what it means.
        decides: what it changes, see `Decides`.
        option: whether the command line has an option of this name, or which kind of thing (see `fedstill ls`) this
            option names.
        bounds: `gt`, `ge`, `lt`, `le`.

    Returns:
        A field for a frozen dataclass that is a `Value`, such as a method.
    """
    return field(default=default, metadata={"doc": doc, "decides": decides, "option": option, "bounds": bounds})


def deciding(cls: type, *what: Decides) -> tuple[str, ...]:
    """The fields of a value's class that decide one of these."""
    return tuple(f.name for f in fields(cls) if f.metadata.get("decides", "bits") in what)


@dataclass(frozen=True)
class Value:
    """Base of all values: checks every field's bounds and choices when it is made."""

    def __post_init__(self) -> None:
        hints, values = _hints(type(self)), by_field(self)  # type: ignore[arg-type]
        for f in fields(self):
            check(f.name, values[f.name], hints[f.name], f.metadata.get("bounds", {}))


@cache
def _hints(cls: type) -> dict[str, Any]:
    """The types of a class's fields."""
    return typing.get_type_hints(cls)


def by_field(value: Any, cls: type | None = None) -> dict[str, Any]:
    """What a dataclass's instance has in its fields, by their names: those that `cls` has too, where it is given."""
    wanted = None if cls is None else {f.name for f in fields(cls)}
    # the only way to a field whose name is not known before
    return {f.name: getattr(value, f.name) for f in fields(value) if wanted is None or f.name in wanted}


def check(name: str, value: Any, hint: Any, bounds: Mapping[str, float]) -> None:
    """Refuse a value that its field does not allow, in one line."""
    if value is None:
        return
    choices = get_args(hint) if get_origin(hint) is Literal else ()
    if choices and value not in choices:
        raise UsageError(f"{name} = {value!r}: must be one of {', '.join(map(str, choices))}")
    if isinstance(value, float) and math.isnan(value):
        raise UsageError(f"{name} = nan: must be a number")
    inner = next((a for a in get_args(hint) if a is not type(None)), hint) if _optional(hint) else hint
    if inner in _PLAIN and (not isinstance(value, _PLAIN[inner][0]) or (inner is not bool and isinstance(value, bool))):
        raise UsageError(f"{name} = {value!r}: must be {_PLAIN[inner][1]}")
    for key, bound in bounds.items():
        holds, sign = _BOUNDS[key]
        if not holds(value, bound):
            raise UsageError(f"{name} = {value}: must be {sign} {bound}")


def coerce(name: str, value: Any, hint: Any) -> Any:
    """Turn a config file's or command line's plain value into what the field's type asks for."""
    origin = get_origin(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        if value is None or value == "none":
            return None
        return coerce(name, value, next(a for a in get_args(hint) if a is not type(None)))
    if origin is Literal:
        return value
    if origin is tuple:
        items = value.split(",") if isinstance(value, str) else list(value)
        return tuple(coerce(name, item, get_args(hint)[0]) for item in items)
    base = origin or hint
    if isinstance(base, type) and issubclass(base, Value):
        return build_named(base, value)
    try:
        if hint is bool and str(value).lower() in ("true", "false"):
            return str(value).lower() == "true"
        if hint is int and isinstance(value, numbers.Integral) and not isinstance(value, bool):
            return int(value)  # beyond 2⁵³ a float would be another number
        if hint is int and not isinstance(value, bool) and float(value) == int(float(value)):
            return int(float(value))
        if hint is float and not isinstance(value, bool):
            return float(value)
        if hint is str and isinstance(value, str):
            return value
    except (TypeError, ValueError, OverflowError):
        pass
    kind = _PLAIN[hint][1] if hint in _PLAIN else str(hint)
    raise UsageError(f"{name} = {value!r}: must be {kind}")


def build(cls: type[V], settings: Mapping[str, Any]) -> V:
    """Make a value of class `cls` from plain settings; unknown names list the known ones."""
    hints = _hints(cls)  # type: ignore[arg-type]
    known = {f.name for f in fields(cls) if f.init}  # type: ignore[arg-type]
    for name in settings:
        if name not in known:
            raise unknown(f"setting of {cls.__name__}", name, known)
    defaults = {f.name: f.default for f in fields(cls)}  # type: ignore[arg-type]
    whole = {name: _completed(value, defaults[name]) for name, value in settings.items()}
    return cls(**{name: coerce(name, value, hints[name]) for name, value in whole.items()})


def _completed(value: Any, default: Any) -> Any:
    """Settings of a part that is not named change the default part: `gather.epsilon=0.2`."""
    if isinstance(default, Value) and isinstance(value, Mapping) and "name" not in value:
        return {**plain(default), **value}
    return value


def build_named(base: type[V], spec: Any) -> V:
    """Make a registered value of a kind from `"name"`, `{"name": …, **settings}`, or a value of that kind itself."""
    if isinstance(spec, base):
        return spec
    registry = Registry.of(base)
    if isinstance(spec, type):
        raise UsageError(f"{registry.kind} = {spec.__name__}: is a class; give a value of it, {spec.__name__}(…)")
    if not isinstance(spec, str | Mapping):
        raise UsageError(f"{registry.kind} = {spec!r}: must be a name, a table with a name, or a value")
    settings = {"name": spec} if isinstance(spec, str) else dict(spec)
    if "name" not in settings:
        raise UsageError(f"{', '.join(settings)}: the {registry.kind} needs a name; known: {', '.join(registry)}")
    cls: type[V] = registry[settings.pop("name")]
    return build(cls, settings)


def plain(value: Any) -> Any:
    """The dictionary of numbers and text that `build_named` turns back into this value."""
    if isinstance(value, Value):
        named, values = [f for f in fields(value) if f.init], by_field(value)
        entry = {f.name: plain(values[f.name]) for f in named}
        unset = {f.name: "none" for f in named if entry[f.name] is None and f.default is not None}
        known = {k: v for k, v in entry.items() if v is not None}
        return {"name": Registry.name_of(type(value)), **known, **unset}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    return value


def changes(value: Any) -> dict[str, Any]:
    """The fields of a value that differ from their defaults: what a short title should say."""
    usual = {f.name: f.default for f in fields(value) if f.init and f.default is not dataclasses.MISSING}
    return {name: now for name, now in by_field(value).items() if name in usual and now != usual[name]}
