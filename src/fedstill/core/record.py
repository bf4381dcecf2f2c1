"""Records: the immutable values that are state and messages.

A record is a frozen dataclass of tensors, numbers, text, and mappings or tuples of these. It turns into a JSON
specification plus named tensors and back (safetensors on disk and on the wire, never pickle); the classes are looked
up by name, so a message can only ever become a record somebody declared.

    >>> import torch
    >>> @record
    ... class Greeting:
    ...     words: Tensor = carries(Carries.LOGITS)
    ...     times: int = carries(Carries.SIZE)
    >>> loads(dumps(Greeting(torch.ones(2), 3))).times
    3
    >>> sizes(Greeting(torch.ones(2), 3))
    {'words': 8, 'times': 8}
"""

import json
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar, dataclass_transform

import safetensors.torch
from torch import Tensor

from fedstill.core.errors import FedstillError
from fedstill.core.value import by_field

R = TypeVar("R")
State = Mapping[str, Tensor]
"""A module's parameters and buffers, by name."""

_types: dict[str, type] = {}


class Carries(StrEnum):
    """What a field of a message tells about its sender: parts find the field they work on by it, never by its name.

    A method that sends something new says what it is in plain words instead: `carries("eigenvalues of the features")`.
    """

    WEIGHTS = "model weights"
    SIZE = "number of samples"
    LOSS = "a loss value"
    STEPS = "number of local steps"
    LOGITS = "logits on public samples"
    ROWS = "which public samples"
    PREDICTIONS = "weighted soft predictions on generated samples"
    CLASS_LOGITS = "mean logits per class"
    PRESENCE = "which classes it has"
    LABEL_COUNTS = "label counts"
    GENERATOR = "a generator of local data"
    DISCRIMINATOR = "a domain discriminator"
    FEATURES = "class means and covariances of features"
    PROTOTYPES = "mean features per class"
    CLASS_PREDICTIONS = "mean soft predictions per class"
    LACK = "which part of the classes it lacks, one number"
    CONTROL = "a control variate (as large as the weights)"
    CHANGE = "change of the weights since the client's last upload"
    VERSION = "a counter"
    COMPRESSED = "compressed difference from what came down"
    SAMPLES = "everything: all samples are in one place"


def carries(what: str, default: Any = ..., varies: bool = False) -> Any:
    """A field of a message, with what it carries; a field without it may not leave a client.

    Args:
        what: one of `Carries`, or a text that says what else it is.
        default: its value when nothing is said; none: it must be given.
        varies: names and shapes of its tensors are the sender's choice, and the method's `objection` checks them.

    Returns:
        A field for a `record`.
    """
    if not isinstance(what, str) or not what:
        raise TypeError(f"carries({what!r}): must be one of Carries, or a text that says what else it is")
    metadata = {"carries": what, "varies": varies}
    return field(metadata=metadata) if default is ... else field(default=default, metadata=metadata)


@dataclass_transform(frozen_default=True, field_specifiers=(field, carries))
def record(cls: type[R]) -> type[R]:
    """Make a class a record: a frozen dataclass that can be written, sent and counted."""
    made = dataclass(frozen=True, eq=False)(cls)
    name = _name(made)
    if _types.setdefault(name, made).__module__ != made.__module__:
        raise TypeError(f"two records are called {name}")
    _types[name] = made
    return made


def _name(cls: type) -> str:
    """What a record's class is called in a file: its name; for one from outside the package, with its module."""
    return cls.__name__ if cls.__module__.startswith("fedstill.") else f"{cls.__module__}:{cls.__qualname__}"


def declared(upload: type) -> dict[str, str]:
    """What every field of an upload carries, from its declaration."""
    missing = [f.name for f in fields(upload) if "carries" not in f.metadata]
    if missing:
        raise TypeError(f"{upload.__name__}.{missing[0]} does not declare what it carries")
    return {f.name: str(f.metadata["carries"]) for f in fields(upload)}


def field_carrying(message: type, *wanted: str) -> str | None:
    """The name of the first field of a message that carries one of these things; None when there is none."""
    return next((f.name for f in fields(message) if f.metadata.get("carries") in wanted), None)


def carried(message: Any, *wanted: str) -> Any:
    """What a message holds in its first field that carries one of these things; None when there is none."""
    name = field_carrying(type(message), *wanted)
    return None if name is None else by_field(message)[name]


def replaced(message: R, value: Any, *wanted: str) -> R:
    """The message with another value in its first field that carries one of these things."""
    name = field_carrying(type(message), *wanted)
    if name is None:
        raise TypeError(f"a {type(message).__name__} carries no {' or '.join(wanted)}")
    return replace(message, **{name: value})  # type: ignore[type-var]  # a record


def flatten(value: Any, tensors: dict[str, Tensor], path: str = "") -> Any:
    """Put a value's tensors into `tensors` under their path, and return the JSON of everything else."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Tensor():
            tensors[path or "value"] = value
            return {"tensor": path or "value"}
        case Persistent():
            return {"kept": value.manifest()}
        case Mapping():
            whole = bool(value) and all(isinstance(key, int) for key in value)
            items = {str(key): flatten(item, tensors, f"{path}/{key}") for key, item in value.items()}
            return {"ints" if whole else "map": items}
        case tuple() | list():
            return {"items": [flatten(item, tensors, f"{path}/{i}") for i, item in enumerate(value)]}
    if is_dataclass(value) and _types.get(_name(type(value))) is type(value):
        entries = {name: flatten(item, tensors, f"{path}/{name}") for name, item in by_field(value).items()}
        return {"record": _name(type(value)), "fields": entries}
    raise TypeError(f"{path or 'value'}: a {type(value).__name__} cannot be part of a record")


def unflatten(spec: Any, tensors: Mapping[str, Tensor], reopen: Callable[[Any], Any] | None = None) -> Any:
    """The value that `flatten` took apart; `reopen` restores what was kept elsewhere (see `Persistent`)."""
    match spec:
        case {"tensor": str(name)}:
            return tensors[name]
        case {"map": dict(items)}:
            return {key: unflatten(item, tensors, reopen) for key, item in items.items()}
        case {"ints": dict(items)}:
            return {int(key): unflatten(item, tensors, reopen) for key, item in items.items()}
        case {"items": list(items)}:
            return tuple(unflatten(item, tensors, reopen) for item in items)
        case {"record": str(name), "fields": dict(entries)}:
            if name not in _types:
                raise FedstillError(f"a record of unknown type {name!r}")
            return _types[name](**{key: unflatten(item, tensors, reopen) for key, item in entries.items()})
        case {"kept": manifest} if reopen is not None:
            return reopen(manifest)
        case None | bool() | int() | float() | str():
            return spec
    raise FedstillError("not the specification of a record")


class Persistent:
    """A part of a record that keeps its entries in files of its own and is written as a manifest of them."""

    def manifest(self) -> Any:
        """Where its entries are, as JSON; whoever writes the record has them written first."""
        raise TypeError(f"{type(self).__name__} cannot leave this process")


def dumps(value: Any) -> bytes:
    """A value as bytes: safetensors, with the specification in the header."""
    tensors: dict[str, Tensor] = {}
    spec = json.dumps(flatten(value, tensors))
    return bytes(safetensors.torch.save(separate(tensors), metadata={"spec": spec}))


def loads(data: bytes, reopen: Callable[[Any], Any] | None = None) -> Any:
    """The value in bytes made by `dumps`; anything else is refused."""
    try:
        length = struct.unpack("<Q", data[:8])[0]
        spec = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["spec"])
        tensors = safetensors.torch.load(data)
        return unflatten(spec, tensors, reopen)
    except FedstillError:
        raise
    except Exception as error:
        raise FedstillError(f"not a record, or cut off: {error}") from error


def save(path: Path, value: Any, safely: bool = True) -> None:
    """Write a value to a file, all of it or nothing; `safely`: so that it outlasts a power cut."""
    write(path, dumps(value), safely)


def load(path: Path, reopen: Callable[[Any], Any] | None = None) -> Any:
    """Read a value from a file; its tensors stay memory-mapped."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            spec = json.loads((file.metadata() or {})["spec"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        return unflatten(spec, tensors, reopen)
    except FedstillError:
        raise
    except Exception as error:
        raise FedstillError(f"{path}: not a record, or cut off: {error}") from error


def write(path: Path, data: bytes, safely: bool = True) -> None:
    """Write a file atomically: a reader sees the old content or the new, never a part.

    `safely`: it is on the disk when this returns, and not only in the system's memory.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            if safely:
                os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:  # of a full disk the system says no name
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
    finally:
        draft.unlink(missing_ok=True)


def secure(path: Path) -> None:
    """Have a file that was written put on the disk, where it outlasts a power cut."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous CPU tensors that share no memory, as safetensors asks."""
    seen: set[int] = set()
    out = {}
    for name, tensor in tensors.items():
        flat = tensor.detach().cpu().contiguous()
        where = flat.untyped_storage().data_ptr()
        out[name] = flat.clone() if where in seen else flat
        seen.add(where)
    return out


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """All tensors of a value, with their paths."""
    tensors: dict[str, Tensor] = {}
    flatten(value, tensors, path)
    yield from tensors.items()


def sizes(value: Any) -> dict[str, int]:
    """Bytes of payload per field of a record: tensors as they are, 8 for a number, text by its length."""
    return {name: size(item) for name, item in by_field(value).items()}


def size(value: Any) -> int:
    """Bytes of payload of a value."""
    match value:
        case None:
            return 0
        case Tensor():
            return value.numel() * value.element_size()
        case str():
            return len(value.encode())
        case Mapping():
            return sum(size(item) for item in value.values())
        case tuple() | list():
            return sum(size(item) for item in value)
        case bool() | int() | float():
            return 8
    return sum(sizes(value).values())


NOT_FINITE = "has values that are not finite or too large"
"""What `fault` says of numbers that training has blown up."""
TOO_LONG = "its update is far longer than the others'"
"""What a hub says of one that training has blown up beside the others'."""


def fault(value: Any, template: Any, limit: float = 1e10) -> str | None:
    """What is wrong with a message, measured against one of the right form; None when nothing is.

    Types, names, shapes and dtypes must be the template's (a template's tensors may be on the meta device), and every
    number finite and below `limit`; variances of normalising layers are not negative. Of a field that `varies`, numbers
    are checked and nothing else.
    """
    if type(value) is not type(template):
        return f"a {type(value).__name__} instead of a {type(template).__name__}"
    got: dict[str, Tensor] = {}
    want: dict[str, Tensor] = {}
    spec, form = flatten(value, got), flatten(template, want)
    varied = [f.name for f in fields(template) if f.metadata.get("varies")] if is_dataclass(template) else []
    free = tuple(f"/{name}/" for name in varied)
    odd = sorted(name for name in got.keys() ^ want.keys() if not name.startswith(free))
    if odd:
        return f"{odd[0]} is {'missing' if odd[0] in want else 'unexpected'}"
    for name in varied:
        del spec["fields"][name], form["fields"][name]
    if (wrong := _misfit(spec, form, limit)) is not None:
        return wrong
    for name, tensor in got.items():
        if name.startswith(free):
            want = {**want, name: tensor}
        if tensor.shape != want[name].shape:
            return f"{name} has shape {tuple(tensor.shape)} instead of {tuple(want[name].shape)}"
        if tensor.dtype != want[name].dtype:
            return f"{name} is {tensor.dtype} instead of {want[name].dtype}"
        if tensor.numel() and not tensor.is_complex():
            numbers = tensor if tensor.is_floating_point() else tensor.double()  # |−2⁶³| is no int64
            extreme = float(numbers.abs().max())
            if not extreme <= limit:
                return f"{name} {NOT_FINITE} ({extreme:.0e})"
            if name.endswith("running_var") and float(tensor.min()) < 0:
                return f"{name} is negative: no variance is"
    return None


def _misfit(spec: Any, form: Any, limit: float, path: str = "") -> str | None:
    """What is wrong with the JSON of everything but tensors: another structure or type, a number beyond `limit`."""
    if type(spec) is not type(form):
        return f"{path or 'value'} is a {type(spec).__name__} instead of a {type(form).__name__}"
    match spec:
        case dict():
            if spec.keys() != form.keys():
                return f"{path}/{sorted(spec.keys() ^ form.keys())[0]} is missing or unexpected"
            return next((w for k in spec if (w := _misfit(spec[k], form[k], limit, f"{path}/{k}"))), None)
        case list():
            if len(spec) != len(form):
                return f"{path or 'value'} has {len(spec)} entries instead of {len(form)}"
            pairs = enumerate(zip(spec, form, strict=True))
            return next((w for i, (a, b) in pairs if (w := _misfit(a, b, limit, f"{path}/{i}"))), None)
        case float() | int() if not abs(spec) <= limit:
            return f"{path or 'value'} {NOT_FINITE} ({spec:.0e})" if isinstance(spec, float) else f"{path} is too large"
    return None
