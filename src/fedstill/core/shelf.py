"""Shelves: what is kept for each client (its state, its last model), however many clients there are.

A shelf is an immutable mapping from clients to values; `put` gives another shelf that shares all other entries. Only
clients that were seen have an entry. When the entries outgrow a limit they move to files and are memory-mapped when
read. `save` writes the entries that are not in a file yet: whoever writes a record with a shelf in it saves the shelf
first, and the record holds only a manifest of its files.
"""

import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedstill.core import record
from fedstill.core.value import by_field


@dataclass(frozen=True, eq=False)
class Storage:
    """Where shelves keep files, and how many bytes each may hold in memory."""

    folder: Path | None = None
    limit: int = 1 << 30

    @cached_property
    def path(self) -> Path:
        """The folder; a temporary one, gone with the process, when the run has none."""
        if self.folder is not None:
            return self.folder
        made = Path(tempfile.mkdtemp(prefix="fedstill-"))
        weakref.finalize(self, shutil.rmtree, made, True)
        return made


@dataclass(eq=False)
class Entry:
    """One client's value: in memory, in a file, or both. All shelves that hold it learn when it has been written."""

    version: int
    size: int
    value: Any = None
    file: Path | None = None
    safe: bool = False
    """Would the file outlast a power cut?"""

    def read(self) -> Any:
        """The value, from memory if it is there."""
        return record.load(self.file) if self.value is None and self.file is not None else self.value


@dataclass(frozen=True, eq=False)
class Shelf(Mapping[int, Any], record.Persistent):
    """Values by client; see the module's text."""

    name: str
    storage: Storage = field(default_factory=Storage)
    entries: dict[int, Entry] = field(default_factory=dict)
    held: int = 0

    def put(self, version: int, values: Mapping[int, Any]) -> "Shelf":
        """A shelf with these clients' values replaced; `version` (the round) names their files."""
        entries, held = dict(self.entries), self.held
        for client, value in values.items():
            old = entries.get(client)
            held -= old.size if old is not None and old.value is not None else 0
            entry = Entry(version, record.size(value), value)
            if held + entry.size > self.storage.limit:
                entry.file = self._file(client, entry)
                record.save(entry.file, value, safely=False)
                entry.value = None
            held += entry.size if entry.value is not None else 0
            entries[client] = entry
        return Shelf(self.name, self.storage, entries, held)

    def __getitem__(self, client: int) -> Any:
        return self.entries[client].read()

    def __iter__(self) -> Iterator[int]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def save(self) -> None:
        """Write the entries that are only in memory (their values stay there too); then all outlast a power cut."""
        for client, entry in self.entries.items():
            if entry.file is None:
                file = self._file(client, entry)
                record.save(file, entry.value)
                entry.file = file
            elif not entry.safe:
                record.secure(entry.file)
            entry.safe = True

    def manifest(self) -> dict[str, Any]:
        """Which file holds whom; all must be written (`save`)."""
        unsaved = next((client for client, entry in self.entries.items() if entry.file is None), None)
        if unsaved is not None:
            raise TypeError(f"shelf {self.name}: client {unsaved} is not on disk; save the shelf before its record")
        return {"name": self.name, "versions": {str(k): e.version for k, e in self.entries.items()}}

    def names(self) -> list[str]:
        """The entries' files, as seen from the storage's folder."""
        return [_name(self.name, client, entry.version) for client, entry in self.entries.items()]

    def _file(self, client: int, entry: Entry) -> Path:
        return self.storage.path / _name(self.name, client, entry.version)


def _name(shelf: str, client: int, version: int) -> str:
    return f"{shelf}/{client}-{version}.safetensors"


def shelves(value: Any) -> Iterator[Shelf]:
    """All shelves inside a record."""
    if isinstance(value, Shelf):
        yield value
    elif is_dataclass(value):
        for item in by_field(value).values():
            yield from shelves(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from shelves(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from shelves(item)


def reopen(storage: Storage) -> Callable[[Any], Shelf]:
    """How `record.load` gets a shelf back from its manifest: entries stay in their files until they are asked for."""

    def shelf(manifest: Any) -> Shelf:
        name, folder = manifest["name"], storage.path
        entries = {
            int(client): Entry(version, 0, None, folder / _name(name, int(client), version), safe=True)
            for client, version in manifest["versions"].items()
        }
        return Shelf(name, storage, entries)

    return shelf
