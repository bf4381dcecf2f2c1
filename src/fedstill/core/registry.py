"""Names for things a user can ask for: one registry for each kind (methods, models, data, partitions …).

>>> class Shape: ...
>>> shapes = Registry[Shape]("shape", Shape)
>>> @shapes.register("square")
... class Square(Shape): ...
>>> shapes["square"] is Square, Registry.name_of(Square)
(True, 'square')

A thing need not be of this package: `"package.module:Name"` is imported when it is asked for (also from the
folder one is in), and what an installed package declares under the entry-point group `fedstill.<kind>` is known by its
name there.
"""

import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, ClassVar, Generic, TypeVar

from fedstill.core.errors import UsageError, unknown

T = TypeVar("T")
_OUTSIDE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_named_code: ContextVar[frozenset[str] | None] = ContextVar("named code", default=None)


@contextmanager
def importing_only(names: frozenset[str]) -> Iterator[None]:
    """Inside, only these `package.module:Name` are imported: a site runs no code that its operator did not name."""
    before = _named_code.set(names)
    try:
        yield
    finally:
        _named_code.reset(before)


def import_named(kind: str, name: str) -> Any:
    """The thing that `package.module:Name` names; `kind` is what an error calls it."""
    allowed = _named_code.get()
    if allowed is not None and name not in allowed:
        raise UsageError(f"{kind} {name}: not imported here; start the hub or site with this name to let it run")
    path, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # a file beside the user's config, in this process and those it spawns
    try:
        module = importlib.import_module(path)
    except Exception as problem:
        what = f"{type(problem).__name__}: {problem}".splitlines()[0]
        raise UsageError(f"{kind} = {name!r}: cannot import {path}: {what}") from problem
    try:
        return getattr(module, attribute)  # what the user asked for by its name
    except AttributeError:
        raise UsageError(f"{kind} = {name!r}: cannot import {attribute!r} from {path}: it has no such name") from None


@cache
def declared_in(group: str) -> tuple[EntryPoint, ...]:
    """What installed packages declare under an entry-point group: looked for once."""
    return tuple(entry_points(group=group))


def _say(text: str) -> None:
    print(text, file=sys.stderr)


class Registry(Mapping[str, Any], Generic[T]):
    """A mapping from names to the things registered under them; a wrong name lists the known ones."""

    _kinds: ClassVar[dict[type, "Registry[Any]"]] = {}
    _names: ClassVar[dict[Any, str]] = {}
    _announced: ClassVar[dict[str, dict[str, str]]] = {}

    def __init__(
        self,
        kind: str,
        base: type[T] | None = None,
        *,
        instances_of: type[T] | None = None,
        group: str | None = None,
    ) -> None:
        """Of a `kind` (a word for errors): of subclasses of `base`, of `instances_of` a class, or of callables.

        `group`: the entry-point group under which packages declare such things; `fedstill.<kind>` unless given.
        """
        self.group = group or f"fedstill.{kind.replace(' ', '_')}"
        self.kind = kind
        self.base = base
        self.instances_of = instances_of
        self._entries: dict[str, Any] = {}
        if base is not None:
            Registry._kinds[base] = self

    def register(self, name: str) -> Callable[[Any], Any]:
        """Decorate a class or function to make it known under `name`."""

        def add(thing: Any) -> Any:
            self._entries[name] = thing
            Registry._names[thing] = name
            return thing

        return add

    @staticmethod
    def announce(kind: str, name: str, module: str) -> None:
        """Say that importing `module` registers `name`; it is imported when the name is first asked for."""
        Registry._announced.setdefault(kind, {})[name] = module

    def __getitem__(self, name: str) -> Any:
        if name not in self._entries and (home := self._later.get(name)) is not None:
            importlib.import_module(home)
        if name not in self._entries and isinstance(name, str) and _OUTSIDE.fullmatch(name):
            return self._adopted(name, import_named(self.kind, name))
        if name not in self._entries and (declared := self._declared.get(name)) is not None:
            self._entries[name] = self._adopted(name, self._loaded(declared))
        if name not in self._entries:
            raise unknown(self.kind, name, self)
        return self._entries[name]

    def usable(self, tell: Callable[[str], None] = _say) -> Iterator[tuple[str, Any]]:
        """Names and things, for who goes through all of them.

        What an installed package declares and cannot be loaded is left out; `tell` gets a line that says why.
        """
        for name in self:
            try:
                yield name, self[name]
            except UsageError as error:
                tell(f"note: {error}; left out")

    def __contains__(self, name: object) -> bool:
        known = name in self._entries or name in self._later or name in self._declared
        return known or (isinstance(name, str) and _OUTSIDE.fullmatch(name) is not None)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries.keys() | self._later.keys() | self._declared.keys()))

    def __len__(self) -> int:
        return len(list(iter(self)))

    @property
    def _declared(self) -> Mapping[str, EntryPoint]:
        """What installed packages declare of this kind, by name."""
        return {entry.name: entry for entry in declared_in(self.group)}

    def _loaded(self, entry: EntryPoint) -> Any:
        """The thing that a package declares."""
        try:
            return entry.load()
        except Exception as problem:
            what = f"{type(problem).__name__}: {problem}".splitlines()[0]
            raise UsageError(f"{self.kind} = {entry.name!r}: {entry.value} cannot be loaded: {what}") from problem

    def _adopted(self, name: str, thing: Any) -> Any:
        """A thing from outside, known from now on by the name it was asked for."""
        if self.base is not None and not (isinstance(thing, type) and issubclass(thing, self.base)):
            raise UsageError(f"{self.kind} = {name!r}: must be a subclass of {self.base.__name__}")
        if self.instances_of is not None and not isinstance(thing, self.instances_of):
            raise UsageError(f"{self.kind} = {name!r}: must be a {self.instances_of.__name__}")
        if self.takes_any and not callable(thing):
            raise UsageError(f"{self.kind} = {name!r}: must be a function or a class")
        Registry._names[thing] = name
        return thing

    @property
    def takes_any(self) -> bool:
        """Can any function or class be of this kind?"""
        return self.base is None and self.instances_of is None

    @property
    def _later(self) -> Mapping[str, str]:
        return Registry._announced.get(self.kind, {})

    @staticmethod
    def of(base: type) -> "Registry[Any]":
        """The registry of a kind, by the base class its things share."""
        return Registry._kinds[base]

    @staticmethod
    def name_of(thing: Any) -> str:
        """The name a thing was registered (or asked for) under; `package.module:Name` for a class nobody registered."""
        known = Registry._names.get(thing)
        if known is not None:
            return known
        name = f"{thing.__module__}:{thing.__qualname__}"
        if not _OUTSIDE.fullmatch(name):
            raise UsageError(f"{thing.__qualname__}: register it under a name, or define it at the top of a module")
        return name
