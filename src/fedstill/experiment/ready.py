"""A run's models, ready for use: modules that take raw inputs, made from the run's folder alone."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from fedstill.core.errors import DataError, RunError, UsageError, unknown
from fedstill.core.method import Env
from fedstill.core.record import State
from fedstill.core.shelf import Storage
from fedstill.core.turn import method_state
from fedstill.data.columns import ArrowStream, from_frame
from fedstill.data.forms import About, as_array, stored, writable
from fedstill.data.pixels import brought_to
from fedstill.data.rows import rows_like
from fedstill.experiment.config import Experiment, experiment
from fedstill.experiment.networks import pixels_of, without_data
from fedstill.experiment.result import principal, views
from fedstill.experiment.rundir import Checkpoint, RunDir
from fedstill.experiment.signature import Signature, roles

FILE = ".safetensors"
"""How a file ends that holds one model and a description of it, as `fedstill export` and `fedstill distil` write it."""
WEIGHTS = f"model{FILE}"
"""A folder with this file and a signature is a model that somebody published."""
BYTES = 127.0
"""Images whose brightest value is above this, and at most 255, are counted in 0…255 even where they are not whole."""


class Ready(nn.Module):
    """A trained model: raw inputs (as the data were, before any preprocessing) in, logits out.

    `name` is the model's in its run, `recipe` says how its network is built, `class_names` are those of the logits,
    `signature` is the run's. Images are brought to the model's size, and inputs normalised, inside.
    """

    def __init__(
        self,
        classifier: nn.Module,
        signature: Signature,
        name: str,
        pixels: tuple[int, ...] | None,
        recipe: Mapping[str, Any],
    ) -> None:
        super().__init__()
        self.recipe = recipe
        self.classifier = classifier
        self.signature = signature
        self.name = name
        self.class_names = signature.class_names
        self._brought = signature.brought
        self._pixels = pixels
        self._black = 0.0 if signature.stored == torch.uint8 else signature.low or 0.0
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """The logits (batch, classes) of raw inputs (batch, …), in the units and the type of the data."""
        if self.signature.stored == torch.uint8 and x.is_floating_point():
            x = x / 255  # bytes that came as floats: 0…255 all the same
        logits: Tensor = self.classifier(self._brought.inputs(brought_to(x, self._brought, self._pixels, self._black)))
        return logits

    def raw(self, x: Any) -> Tensor:
        """Checked raw inputs from arrays, tensors or lists: many samples, or a single one."""
        if isinstance(x, ArrowStream):  # a frame, its columns known by name
            x = rows_like(self._brought, from_frame(x), "x", self.signature.rows)
        array = x.detach().cpu().numpy() if isinstance(x, Tensor) else as_array("x", "x", x)
        shape, dtype = tuple(self._brought.blank(1).shape[1:]), self.signature.stored
        if array.shape == shape or (shape[0] == 1 and array.shape == shape[1:]):
            array = array[None]
        if dtype == torch.uint8 and array.dtype.kind == "f" and array.size:
            if 0 < array.max() <= 1:
                raise UsageError(
                    "x: values from 0 to 1, but the run's images count from 0 to 255; multiply them by 255"
                )
            array = np.rint(array).clip(0, 255).astype(np.uint8)
        elif dtype != torch.uint8 and array.dtype.kind in "biuf":
            array = array.astype(str(dtype).removeprefix("torch."))
        if self.signature.kind["name"] == "image":
            array = stored("x", array, "image", About())
        inputs = torch.from_numpy(writable(array))
        wrong = self._brought.fault(inputs)
        if wrong is not None or inputs.dtype != dtype:
            raise DataError(f"x: {wrong or f'is {inputs.dtype}, must be {dtype}'}; the run has {self._brought.words()}")
        return inputs

    def probabilities(self, x: Any) -> Tensor:
        """The classes' probabilities (N, classes) for raw inputs of any array form."""
        device = next(self.parameters()).device
        with torch.no_grad():
            chunks = [torch.softmax(self(part.to(device)), -1).cpu() for part in torch.split(self.raw(x), 500)]
        return torch.cat(chunks)

    def predict(self, x: Any) -> NDArray[np.int64]:
        """The class numbers of raw inputs; `class_names` has their names."""
        numbers: NDArray[np.int64] = self.probabilities(x).argmax(-1).numpy()
        return numbers

    @property
    def units(self) -> tuple[float, float]:
        """What black and white are in raw inputs that are images."""
        low, high = self.signature.low or 0.0, self.signature.high or 0.0
        if self.signature.stored == torch.uint8 or (low >= 0 and BYTES < high <= 255):
            return 0.0, 255.0
        return (0.0, 1.0) if low >= 0 and high <= 1 else (low, high)


@views.register("model")
def load_model(path: str | Path, name: str | None = None, *, model: Any = None) -> Ready:
    """A model of the run in folder `path`, ready for use on any machine: no data are needed.

    Args:
        path: the run's folder, one that `fedstill pull` wrote, or a .safetensors file of `fedstill export` or `distil`.
        name: `overall`, `active` … or a client's number for that client's own model (default: the one the method
            is judged by where it names one, else `overall` where there is one, else the first).
        model: the module, class or factory again, for a run whose model was given as an object.

    Returns:
        A torch module in evaluation mode: raw inputs in, logits out.
    """
    if Path(path).suffix == FILE:
        return _alone(Path(path), *described(Path(path)), name, model)
    if (Path(path) / WEIGHTS).exists():
        return _alone(Path(path), Signature.read(Path(path)), *read_weights(Path(path) / WEIGHTS), name, model)
    folder = RunDir.open(Path(path))
    settings = folder.read("experiment.json")
    signature = replace(Signature.read(folder.path), reading=roles(settings.get("reading")))
    specs = signature.specs(folder.path, model)
    plan = experiment(settings)
    classes, storage = len(signature.class_names), Storage(folder.path)
    env = without_data(specs, signature.brought, classes, signature.sizes, seed=plan.seed, storage=storage)
    checkpoint, _ = folder.latest()
    if checkpoint is None:
        raise RunError(f"{path}: no whole checkpoint there")
    weights, of, chosen = trained(plan, env, checkpoint, name)
    recipe = signature.recipes[signature.of[-1 if of is None else of]]
    return Ready(env.module(weights, of), signature, chosen, pixels_of(specs), recipe)


def _alone(
    path: Path, signature: Signature, weights: State, about: Mapping[str, str], name: str | None, model: Any
) -> Ready:
    """The one model of a file, or of a folder that `fedstill push` wrote."""
    chosen = about.get("model", "")
    if name not in (None, chosen):
        raise unknown(f"model of {path}", str(name), [chosen])
    specs = signature.specs(path, model)
    module = without_data(specs, signature.brought, len(signature.class_names), (), seed=0).module(weights)
    return Ready(module, signature, chosen, pixels_of(specs), signature.recipes[0])


def described(path: Path) -> tuple[Signature, State, dict[str, str]]:
    """What a model's file says of itself, its weights, and all its metadata."""
    weights, about = read_weights(path)
    if "class_names" not in about or "input" not in about:
        raise DataError(f"{path}: says nothing of its inputs and classes; write it with `fedstill export`")
    inputs, classes = json.loads(about["input"]), json.loads(about["class_names"])
    recipe = json.loads(about["recipe"]) if "recipe" in about else {"object": "not named in the file"}
    signature = Signature(**inputs, class_names=tuple(classes), recipes=(recipe,), of=(0,), sizes=())
    return signature, weights, about


def read_weights(path: Path) -> tuple[State, dict[str, str]]:
    """The weights in a .safetensors file, and what it says of them."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path}: not a .safetensors file that can be read ({error})") from None


def trained(plan: Experiment, env: Env, checkpoint: Checkpoint, name: str | None) -> tuple[State, int | None, str]:
    """The weights of a checkpoint's model, whose architecture it has (None: the server's), and its name."""
    there: Mapping[str, State] = plan.method.models(env, checkpoint.server)
    states = {k: method_state(checkpoint.clients[k]) for k in checkpoint.clients}
    own = {str(k): k for k, state in states.items() if plan.method.own(env.at(0, k), state) is not None}
    chosen = name or principal([*there, *own], plan.method.judged_by)
    if chosen in there:
        return there[chosen], plan.method.architectures(env, checkpoint.server).get(chosen), chosen
    weights = plan.method.own(env.at(0, own[chosen]), states[own[chosen]]) if chosen in own else None
    if weights is None:
        raise unknown("model of this run", chosen, [*there, *own])
    return weights, own[chosen], chosen
