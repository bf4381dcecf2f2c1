"""Modules by architecture: one prototype of each, and fast copies of it.

Every turn begins with a fresh module. `copy.deepcopy` walks through each of a layer's two dozen attributes by general
means and takes longer than a small client's training; `duplicate` knows what a module is made of.
"""

import copy
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import cache
from types import BuiltinFunctionType, FunctionType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from fedstill.core.classifier import Classifier
from fedstill.core.record import State

M = TypeVar("M", bound=nn.Module)

_SHARED = frozenset(
    {
        bool, int, float, complex, str, bytes, type(None), type, FunctionType, BuiltinFunctionType,
        torch.dtype, torch.device, torch.memory_format, torch.Size,
    }
)  # fmt: skip
"""Types whose values never change, so that a copy may share them."""
_OWN_WAYS = ("__deepcopy__", "__reduce__", "__reduce_ex__", "__getstate__")
"""Methods by which a class says itself how it is copied."""


def duplicate(module: M, memo: dict[int, Any] | None = None) -> M:
    """What `copy.deepcopy(module, memo)` gives, in a fraction of the time.

    Whatever is not a plain module, parameter or container is left to `deepcopy`.
    """
    copied: M = _copied(module, {} if memo is None else memo)
    return copied


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    """A deep copy; `memo` is deepcopy's, so that what is shared inside (tied weights, say) stays shared."""
    kind = type(value)
    if kind in _SHARED:
        return value
    if id(value) in memo:
        return memo[id(value)]
    if kind is nn.Parameter and not value.__dict__:
        made: Any = nn.Parameter(value.detach().clone(memory_format=torch.preserve_format), value.requires_grad)
    elif kind is Tensor and not value.requires_grad and not value.__dict__:
        made = value.clone(memory_format=torch.preserve_format)
    elif kind is OrderedDict or kind is dict:
        made = memo[id(value)] = kind()
        for name, item in value.items():
            made[_copied(name, memo)] = _copied(item, memo)
        return made
    elif kind is set and not value:
        made = set()
    elif isinstance(value, nn.Module) and _plainly_copied(kind):  # type: ignore[arg-type]
        made = memo[id(value)] = object.__new__(kind)
        state = value.__getstate__()  # type: ignore[no-untyped-call]
        made.__setstate__({n: v if type(v) in _SHARED else _copied(v, memo) for n, v in state.items()})
        return made
    else:
        return copy.deepcopy(value, memo)
    memo[id(value)] = made
    return made


@cache
def _plainly_copied(kind: type) -> bool:
    """Is a module of this class copied by copying its attributes?"""
    known = [vars(base) for base in kind.__mro__ if base not in (nn.Module, object)]
    return not any(name in attributes for attributes in known for name in _OWN_WAYS)


def slots(module: nn.Module) -> State | None:
    """The module's own parameters and buffers, by name; None where a part of it reads a state in a way of its own."""
    for part in module.modules():
        own_way = type(part)._load_from_state_dict is not nn.Module._load_from_state_dict
        hooked = part._load_state_dict_pre_hooks or part._load_state_dict_post_hooks
        if hooked or (own_way and not type(part).__module__.startswith("torch.nn.")):
            return None
    tensors = dict(module.state_dict(keep_vars=True))
    return tensors if all(type(tensor) in (nn.Parameter, Tensor) for tensor in tensors.values()) else None


def loaded(module: M, places: State | None, weights: State) -> M:
    """A copy of a module that holds these weights; `places` are the module's `slots`.

    The copy is made of the weights themselves. What does not fit is left to `load_state_dict`, which says so.
    """
    fits = places is not None and places.keys() == weights.keys()
    if places is None or not fits or any(old.shape != weights[name].shape for name, old in places.items()):
        made = duplicate(module)
        made.load_state_dict(weights)
        return made
    memo: dict[int, Any] = {}
    with torch.no_grad():
        for name, old in places.items():
            new = torch.empty_like(old).copy_(weights[name])
            memo[id(old)] = nn.Parameter(new, old.requires_grad) if type(old) is nn.Parameter else new
    return duplicate(module, memo)


class Prototypes:
    """How an `Env` builds modules: a prototype of each architecture, made when it is first asked for."""

    def __init__(self, which: Callable[[int | None], Hashable], make: Callable[[int | None, int], Classifier]) -> None:
        """`which(k)` names client k's architecture (the server's for None); `make(k, seed)` builds one of it."""
        self.which = which
        self.make = make
        self._made: dict[Hashable, Classifier] = {}
        self._forms: dict[Hashable, State] = {}
        self._slots: dict[Hashable, State | None] = {}

    def __call__(self, client: int | None, seed: int | None) -> Classifier:
        """A module of the client's architecture: from the seed if given, else a copy of the prototype."""
        return duplicate(self._prototype(client)) if seed is None else self.make(client, seed)

    def holding(self, client: int | None, weights: State) -> Classifier:
        """A copy of the client's prototype that holds these weights."""
        name, prototype = self.which(client), self._prototype(client)
        if name not in self._slots:
            self._slots[name] = slots(prototype)
        return loaded(prototype, self._slots[name], weights)

    def form(self, client: int | None) -> State:
        """The prototype's own weights, to be read only: names, shapes and types."""
        name = self.which(client)
        if name not in self._forms:
            self._forms[name] = dict(self._prototype(client).state_dict())
        return self._forms[name]

    def _prototype(self, client: int | None) -> Classifier:
        name = self.which(client)
        if name not in self._made:
            self._made[name] = self.make(client, 0).cpu()
        return self._made[name]
