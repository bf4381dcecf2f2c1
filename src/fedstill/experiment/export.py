"""Using what a run has made: classify an image, write a model for elsewhere."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedstill.core.errors import DataError, RunError, UsageError, unknown
from fedstill.core.turn import method_state
from fedstill.data.pixels import fit, images
from fedstill.experiment.config import experiment
from fedstill.experiment.rundir import RunDir
from fedstill.experiment.setting import Setting
from fedstill.experiment.stage import Stage, stage


def trained(path: Path, which: str | None = None, **given: Any) -> tuple[nn.Module, Stage, str]:
    """A run's model from its last checkpoint: `overall` where there is one, else the first, or the one asked for.

    A client's number asks for that client's own model. Data or models that were objects are `given` again.
    """
    folder = RunDir.open(path)
    plan = experiment({**folder.read("experiment.json"), **given})
    ready = stage(plan, folder.storage) if plan.transport != "flower" else _deployed(folder)
    checkpoint, _ = folder.latest()
    if checkpoint is None:
        raise RunError(f"{path}: no whole checkpoint there")
    there = dict(plan.method.models(ready.env, checkpoint.server))
    states = {k: method_state(checkpoint.clients[k]) for k in checkpoint.clients}
    own = {str(k): k for k, state in states.items() if plan.method.own(ready.env.at(0, k), state) is not None}
    which = which or ("overall" if "overall" in there else next(iter([*there, *own]), ""))
    if which in own:
        weights = plan.method.own(ready.env.at(0, own[which]), states[own[which]])
        return ready.env.module(weights, own[which]).eval(), ready, which
    if which not in there:
        raise unknown("model of this run", which, [*there, *own])
    of = plan.method.architectures(ready.env, checkpoint.server).get(which)
    return ready.env.module(there[which], of).eval(), ready, which


def _deployed(folder: RunDir) -> Stage:
    """The stage of a run whose data stayed on their sites."""
    return Setting.read((folder.path / "setting.json").read_text()).stage(folder.storage)


def classify(path: Path, image: Path, which: str | None = None) -> dict[str, Any]:
    """The classes of an image, most likely first."""
    module, ready, name = trained(path, which)
    picture = _read(image, ready)
    with torch.no_grad():
        shares = torch.softmax(module(picture), -1)[0]
    order = shares.argsort(descending=True).tolist()
    return {"model": name, "probabilities": {ready.class_names[c]: float(shares[c]) for c in order}}


def _read(image: Path, ready: Stage) -> torch.Tensor:
    """An image file in the size, colours and normalisation of the run's data."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(image) as file:
            shown = file.convert("L" if ready.env.shape[0] == 1 else "RGB").resize((ready.pixels[1], ready.pixels[0]))
    except FileNotFoundError:
        raise UsageError(f"{image}: no such file") from None
    except (UnidentifiedImageError, OSError) as error:
        raise DataError(f"{image}: not an image that can be read ({error})") from None
    array = np.asarray(shown, np.uint8)
    array = array[None] if array.ndim == 2 else array.transpose(2, 0, 1)
    kind: Any = ready.env.kind
    one = images(torch.from_numpy(array[None].copy()), torch.zeros(1, dtype=torch.int64), kind.mean, kind.std)
    return fit(one, (ready.env.shape[1],)).inputs()


def write_model(path: Path, target: Path, which: str | None = None) -> str:
    """Write a run's model as .onnx, .pt2 (torch.export) or .safetensors, and say so."""
    module, ready, name = trained(path, which)
    example = torch.zeros(2, *ready.env.shape)
    if target.suffix == ".safetensors":
        from safetensors.torch import save_file

        save_file({k: v.contiguous() for k, v in module.state_dict().items()}, target)
    elif target.suffix == ".pt2":
        batch = torch.export.Dim("batch")
        torch.export.save(torch.export.export(module, (example,), dynamic_shapes=({0: batch},)), target)
    elif target.suffix == ".onnx":
        try:
            import onnxscript  # noqa: F401
        except ImportError:
            raise UsageError(f"{target}: ONNX needs an extra: pip install 'fedstill[onnx]'") from None
        batch = torch.export.Dim("batch")
        torch.onnx.export(
            module, (example,), target, input_names=["images"], output_names=["logits"], dynamic_shapes=({0: batch},),
            dynamo=True, verbose=False,
        )  # fmt: skip
    else:
        raise UsageError(f"{target}: must end in .onnx, .pt2 or .safetensors")
    return f"{name} → {target} ({sum(p.numel() for p in module.parameters()):,} parameters, images {ready.env.shape})"
