"""Names for things a user can ask for: one registry for each kind (methods, models, data, partitions …).

>>> class Shape: ...
>>> shapes = Registry[Shape]("shape", Shape)
>>> @shapes.register("square")
... class Square(Shape): ...
>>> shapes["square"] is Square, Registry.name_of(Square)
(True, 'square')
"""

import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, Generic, TypeVar

from fedstill.core.errors import unknown

T = TypeVar("T")


class Registry(Mapping[str, Any], Generic[T]):
    """A mapping from names to the things registered under them; a wrong name lists the known ones."""

    _kinds: ClassVar[dict[type, "Registry[Any]"]] = {}
    _names: ClassVar[dict[Any, str]] = {}
    _announced: ClassVar[dict[str, dict[str, str]]] = {}

    def __init__(self, kind: str, base: type[T] | None = None) -> None:
        self.kind = kind
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
        if name not in self._entries:
            raise unknown(self.kind, name, self)
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries or name in self._later

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries.keys() | self._later.keys()))

    def __len__(self) -> int:
        return len(self._entries.keys() | self._later.keys())

    @property
    def _later(self) -> Mapping[str, str]:
        return Registry._announced.get(self.kind, {})

    @staticmethod
    def of(base: type) -> "Registry[Any]":
        """The registry of a kind, by the base class its things share."""
        return Registry._kinds[base]

    @staticmethod
    def name_of(thing: Any) -> str:
        """The name a thing was registered under."""
        return Registry._names[thing]
