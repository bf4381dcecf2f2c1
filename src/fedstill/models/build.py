"""From what a user writes after `model =` to a model.

- `"lenet5"`: a registered name;
- `"package.module:factory"`: a class or function of the user's, called as factory() or factory(shape, classes), or
  with those of shape, kind and classes that it names;
- `Net`, `make_net`: the same, as objects;
- `Net()`: a module, which is copied.
"""

import copy
import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

from torch import nn

from fedstill.core.classifier import Classifier
from fedstill.core.errors import UsageError
from fedstill.core.kind import Kind
from fedstill.core.registry import Registry, import_named
from fedstill.core.rng import seeded
from fedstill.models.adopt import adopt, one_line
from fedstill.models.classifier import Shape, as_kind, refuse_other_kinds
from fedstill.models.registry import models

Spec = str | nn.Module | Callable[..., nn.Module]


def auto(kind: Kind) -> str:
    """The name of the model that fits data of this kind, where nobody asked for another."""
    if kind.plural == "images":
        return "mlp" if kind.shape[1] < 28 else "lenet5"
    return {"series": "cnn1d", "table": "tabresnet", "tokens": "textcnn"}.get(Registry.name_of(type(kind)), "mlp")


def initial(spec: Spec, kind: Kind | Shape, classes: int, seed: int) -> Classifier:
    """The model with the weights it starts from: they depend on the seed alone (a module keeps its own)."""
    with seeded(seed):
        return build_model(spec, kind, classes)


def build_model(spec: Spec, kind: Kind | Shape, classes: int) -> Classifier:
    """The model for data of this kind (or shape), its weights drawn from PyTorch's present random state."""
    kind = as_kind(kind)
    if isinstance(spec, nn.Module):
        return adopt(copy.deepcopy(spec), kind, classes, type(spec).__qualname__)
    title = spec.__qualname__ if isinstance(spec, type | FunctionType) else repr(spec)
    if isinstance(spec, str) and ":" not in spec:
        module = _called(models[spec], kind, classes, title)
        return module if isinstance(module, Classifier) else adopt(module, kind, classes, title)
    factory = import_named("model", spec) if isinstance(spec, str) else spec
    if not callable(factory):
        raise UsageError(f"model = {title}: must be a name, 'package.module:factory', a class, a function or a module")
    return adopt(_called(factory, kind, classes, title), kind, classes, title)


def _called(factory: Callable[..., Any], kind: Kind, classes: int, title: str) -> Any:
    """factory() or factory(shape, classes), as it asks; one that names `kind` gets that."""
    shape = kind.shape
    try:
        if isinstance(factory, type) and issubclass(factory, Classifier) and factory in models.values():
            refuse_other_kinds(factory, kind, models)
        parameters = inspect.signature(factory).parameters
        offered = {"shape": shape, "kind": kind, "classes": classes}
        named = {name: value for name, value in offered.items() if name in parameters}
        optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        asks = any(p.default is p.empty and p.kind not in optional for p in parameters.values())
        module = factory(shape, classes) if asks and not named else factory(**named)
    except UsageError as problem:
        raise UsageError(f"model = {title}: {problem}") from problem
    except Exception as problem:
        hint = f"cannot be built as factory() or factory(shape, classes): {one_line(problem)}"
        raise UsageError(f"model = {title}: {hint}") from problem
    if not isinstance(module, nn.Module):
        raise UsageError(f"model = {title}: gives a {type(module).__name__}, must give a torch.nn.Module")
    return module
