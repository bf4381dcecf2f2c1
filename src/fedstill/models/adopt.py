"""A user's own module as a classifier, under its own parameter names.

A trial run finds the features: those the module declares (`features()` and `head`, when head(features(x)) is what it
gives), else the input of its last linear layer, when that layer's output is the module's (a softmax or log-softmax
after it may follow, and is left off: logits are logits; so may layers for other outputs). A module with neither still
classifies.
"""

import copy
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from fedstill.core.classifier import Classifier
from fedstill.core.errors import UsageError
from fedstill.core.kind import Kind
from fedstill.core.rng import seeded


def adopt(own: nn.Module, kind: Kind, classes: int, title: str) -> Classifier:
    """Make `own` a classifier, after a trial on two samples of noise; `title` names it in errors."""
    if isinstance(own, Classifier):
        trial(copy.deepcopy(own), kind, classes, title)
        return own
    seen: list[tuple[str, Tensor, Tensor]] = []
    probe = copy.deepcopy(own)
    for name, layer in probe.named_modules():
        if isinstance(layer, nn.Linear):
            layer.register_forward_hook(lambda _, inputs, output, name=name: seen.append((name, inputs[0], output)))
    output = trial(probe, kind, classes, title)
    made = _fitting(own, title, seen, output, _declared(probe, output, kind))
    if kind.imagined_shape != kind.shape and not isinstance(own, Embeds):
        made.__dict__["_tokens_only"] = True
    return made


def _fitting(
    own: nn.Module, title: str, seen: list[tuple[str, Tensor, Tensor]], output: Tensor, declared: Tensor | None
) -> "Adopted":
    """The module as what it turned out to be; `seen`: linear layers with their inputs and outputs, in their order."""
    if declared is not None:
        return Declared(own, declared.shape[1])
    for name, features, logits in reversed(seen):
        if _same_prediction(logits, output):
            return Tapped(own, name, features.shape[1], ends=torch.equal(logits, output))
    return Opaque(own, title)


def trial(model: nn.Module, kind: Kind, classes: int, title: str) -> Tensor:
    """The logits that the model gives for two samples of noise; refuses anything but (2, classes).

    The model is left in evaluation mode.
    """
    many = f"{kind.plural} of shape {kind.shape}"
    try:
        given = _run(model.eval(), _noise(kind))
    except Exception as problem:
        raise UsageError(f"model = {title}: cannot take {many}: {one_line(problem)}") from problem
    output = logits_of(given)
    if output is None:
        raise UsageError(f"model = {title}: gives a {type(given).__name__}, must give a tensor of logits")
    if output.dim() != 2 or len(output) != 2:
        raise UsageError(f"model = {title}: gives {tuple(output.shape)} for 2 {kind.plural}, must give (2, {classes})")
    if output.shape[1] != classes:
        raise UsageError(f"model = {title}: gives {output.shape[1]} outputs, data have {classes} classes")
    _trainable(model, title)
    return output


def _trainable(model: nn.Module, title: str) -> None:
    """Refuse a model that nothing can be learnt with, and weights that are no numbers."""
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UsageError(f"model = {title}: has no parameters that ask for a gradient; nothing could be trained")
    for name, value in model.state_dict().items():
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise UsageError(f"model = {title}: {name} holds numbers that are not finite")


@runtime_checkable
class HasLogits(Protocol):
    """What models of `transformers` and their like give."""

    logits: Tensor


def logits_of(output: Any) -> Tensor | None:
    """The logits in what a module gives: a tensor, an object or a dictionary with `logits`, the first of a tuple."""
    if isinstance(output, HasLogits):
        return output.logits
    if isinstance(output, Mapping):
        output = output.get("logits")
    elif isinstance(output, tuple | list) and output:
        output = output[0]
    return output if isinstance(output, Tensor) else None


def one_line(problem: Exception) -> str:
    """An exception as one line."""
    return f"{type(problem).__name__}: {str(problem).strip().partition(chr(10))[0]}"


def _noise(kind: Kind) -> Tensor:
    return kind.noise(2, torch.Generator().manual_seed(0))


def _run(call: Any, *inputs: Tensor) -> Any:
    with seeded(0), torch.no_grad():
        return call(*inputs)


def _declared(probe: nn.Module, output: Tensor, kind: Kind) -> Tensor | None:
    if not isinstance(probe, Featured) or not isinstance(probe.head, nn.Module):
        return None
    try:
        vectors: Tensor = _run(probe.features, _noise(kind))
        agree = vectors.dim() == 2 and torch.allclose(_run(probe.head, vectors), output, atol=1e-5)
    except Exception:  # `features` that mean something else, such as the convolutions of a VGG
        return None
    return vectors if agree else None


def _same_prediction(logits: Tensor, output: Tensor) -> bool:
    if logits.shape != output.shape:
        return False
    chances = logits.softmax(1)
    return torch.allclose(output.softmax(1), chances, atol=1e-5) or torch.allclose(output, chances, atol=1e-5)


@runtime_checkable
class Featured(Protocol):
    """A module that says what its feature vectors are, and what makes logits of them."""

    head: nn.Module

    def features(self, x: Tensor) -> Tensor:
        """The feature vectors (batch, width) of inputs."""


@runtime_checkable
class Embeds(Protocol):
    """A module for texts that says how it turns tokens into numbers, and takes these as well."""

    def embed(self, x: Tensor) -> Tensor:
        """The embeddings (batch, length, width) of tokens (batch, length)."""


class Adopted(Classifier):
    """A user's module: this object shares its parameters, buffers and submodules, and so their names.

    A module that calls a part of its own `features` (VGG), `head` or the like cannot have both: its names then begin
    with "own.".
    """

    _own: nn.Module
    _tokens_only = False
    """Does the module take numbers of words, and nothing that a generator makes?"""

    def __init__(self, own: nn.Module, **declared: Any) -> None:
        super().__init__()
        self.training = own.training
        # The very same dictionaries: what is loaded, moved or swapped (functional_call) in one is so in the other.
        # And past nn.Module's registration, which would list the head a second time.
        shared = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
        self.__dict__.update({name: own.__dict__[name] for name in shared}, _own=own, **declared)
        parts = {**own._parameters, **own._buffers, **own._modules}
        # A part whose name is one of ours (`features`, `logits` …) is hidden by it: then all stand one level down.
        if any(getattr(self, name) is not part for name, part in parts.items()):
            fresh = nn.Module()
            fresh.add_module("own", own)
            self.__dict__.update({name: fresh.__dict__[name] for name in shared})

    def train(self, mode: bool = True) -> "Adopted":
        """Set the mode of the user's module, by its own train()."""
        self.training = mode
        self._own.train(mode)
        return self

    def embed(self, x: Tensor) -> Tensor:
        """By the module's own `embed`, where it has one; numbers of words are refused where it has none."""
        if x.is_floating_point():
            return x
        if not isinstance(self._own, Embeds):
            raise self._no_embedding()
        return self._own.embed(x)

    def _no_embedding(self) -> UsageError:
        return UsageError(
            f"model = {type(self._own).__qualname__}: texts are imagined as embeddings; "
            "give it embed(tokens), and let forward take what embed gives"
        )

    def _answer(self, x: Tensor) -> Any:
        """What the user's module gives; embeddings are refused by one that takes only numbers of words."""
        if self._tokens_only and x.is_floating_point():
            raise self._no_embedding()
        return self._own(x)

    @abstractmethod
    def features(self, x: Tensor) -> Tensor:
        """The feature vectors (batch, width) of the inputs x."""


class Declared(Adopted):
    """A module with features() and head of its own."""

    _own: Any  # a `Featured`, by trial

    def __init__(self, own: nn.Module, width: int) -> None:
        super().__init__(own, head=own.get_submodule("head"), width=width)

    def features(self, x: Tensor) -> Tensor:
        """The module's own features."""
        features: Tensor = self._own.features(x)
        return features


class Tapped(Adopted):
    """A module whose features are what its last linear layer receives."""

    def __init__(self, own: nn.Module, last: str, width: int, ends: bool) -> None:
        """`ends`: is the output of the layer `last` the module's output, with nothing after it?"""
        super().__init__(own, head=own.get_submodule(last), width=width, _direct=ends)

    def features(self, x: Tensor) -> Tensor:
        """The input of the last linear layer."""
        return self._ends(x)[0]

    def logits(self, x: Tensor) -> Tensor:
        """The output of the last linear layer."""
        given = self._answer(x) if self._direct else self._ends(x)[1]
        logits = given if isinstance(given, Tensor) else logits_of(given)
        assert logits is not None, "the trial saw logits"
        return logits

    def chain(self) -> tuple[nn.Module, ...]:
        """The user's own module, where it ends in logits."""
        return (self._own,) if self._direct else ()

    def _ends(self, x: Tensor) -> tuple[Tensor, Tensor]:
        ends: list[tuple[Tensor, Tensor]] = []
        handle = self.head.register_forward_hook(lambda _, inputs, output: ends.append((inputs[0], output)))
        try:
            self._answer(x)
        finally:
            handle.remove()
        return ends[-1]


class Opaque(Adopted):
    """A module without a feature vector: good for every method that asks for logits only."""

    def __init__(self, own: nn.Module, title: str) -> None:
        super().__init__(own, _title=title)

    def features(self, x: Tensor) -> Tensor:
        """Refused: there are none."""
        raise UsageError(f"model = {self._title}: has no features; end it in nn.Linear or give it features() and head")

    def logits(self, x: Tensor) -> Tensor:
        """What the module gives."""
        logits = logits_of(self._answer(x))
        assert logits is not None, "the trial saw logits"
        return logits

    def __getattr__(self, name: str) -> Any:
        """Torch finds parts of a module here; whoever asks for a head or its width is told that there is none."""
        if name in ("head", "width") and name not in self._modules:
            return self.features(torch.empty(0))
        return super().__getattr__(name)
