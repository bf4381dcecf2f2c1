"""The smallest real experiment, and how to compare runs to the bit."""

import json
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from fedstill.core.method import methods
from fedstill.core.record import leaves
from fedstill.core.shelf import Shelf
from fedstill.core.value import build
from fedstill.data import Samples
from fedstill.data.kinds import Image
from fedstill.experiment.config import Experiment, experiment

torch.set_num_threads(1)


def images(x: Tensor, y: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Samples:
    """Samples from images N×C×H×W (uint8 or float32), with a mean and a deviation for each channel."""
    return Samples(x, y, Image(tuple(x.shape[1:]), mean, std))


def small_method(name: str, **settings: Any) -> Any:
    """A registered method with little work for each turn."""
    cls = methods[name]
    there = {f.name for f in fields(cls)}
    light = {
        "epochs": 1, "batch": 32, "noise": 8, "channels": 4, "distill_samples": 64, "server_steps": 2,
        "generations": 2, "synthesis_steps": 2, "synthetic": 16,
    }  # fmt: skip
    return build(cls, {**{k: v for k, v in light.items() if k in there}, **settings})


def small_experiment(method: Any, **settings: Any) -> Experiment:
    """Eight-by-eight digits, six clients, three of them active, two rounds."""
    plan = {
        "data": "digits",
        "samples": 400,
        "clients": 6,
        "active": 0.5,
        "rounds": 2,
        "alpha": 0.5,
        "workers": "inline",
    }
    if "partition" in settings:
        del plan["alpha"]
    return experiment({"method": method, **plan, **settings})


def same_bits(a: Any, b: Any) -> bool:
    """Are all tensors of two records equal, bit for bit?"""
    left, right = dict(leaves(a)), dict(leaves(b))
    return left.keys() == right.keys() and all(torch.equal(left[n], right[n]) for n in left)


def without_shelves(server: Any) -> Any:
    """The server's record without what lives in files."""
    if isinstance(server, Shelf):
        return None
    if hasattr(server, "__dataclass_fields__"):
        return tuple(without_shelves(getattr(server, f.name)) for f in fields(server))
    if isinstance(server, tuple | list):
        return tuple(without_shelves(item) for item in server)
    return server


def preset_base(**more: object) -> str:
    """The base of a preset that runs in no time, as its file has it."""
    known = {"data": "digits", "samples": 300, "clients": 4, "active": 0.5, "rounds": 2, "model": "mlp", **more}
    return "[base]\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in known.items())


FEDAVG_ROWS = """
[[rows]]
label = "FedAvg"
method = { name = "fedavg", lr = 0.1, epochs = 1 }
model = "active"
[[rows]]
label = "FedAvg (OCA)"
method = { name = "fedavg", lr = 0.1, epochs = 1 }
model = "overall"
"""
"""Both models of FedAvg, as rows of a preset."""
