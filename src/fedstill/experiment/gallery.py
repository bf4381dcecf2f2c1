"""The pictures a run leaves for its report: what generators on clients imagine. A report reads them, and no data."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file
from safetensors.torch import save

from fedstill.core.method import Env
from fedstill.core.record import write
from fedstill.core.shelf import Shelf, Storage
from fedstill.core.turn import method_state
from fedstill.data.kinds import Image
from fedstill.experiment.config import Experiment
from fedstill.experiment.stage import stage

FILE = "gallery.safetensors"
CLIENTS, SAMPLES = 2, 13
"""Of how many clients imagined samples are kept, and how many."""


def write_gallery(folder: Path, plan: Experiment, env: Env, states: Shelf, rounds: int) -> None:
    """Keep what the first clients' own generators imagine after so many rounds; nothing where they have none."""
    if not isinstance(env.kind, Image):
        return
    found = {}
    for client in sorted(states)[:CLIENTS]:
        samples = plan.method.imagined(env.at(rounds, client), method_state(states[client]), SAMPLES)
        if samples is not None:
            found[f"client {client}"] = env.kind.kept(samples.cpu()).contiguous()
    if found:
        write(folder / FILE, save(found))


def read_gallery(folder: Path) -> dict[str, NDArray[np.uint8]]:
    """Images (samples × channels × height × width) by who imagined them; nothing where the run kept none."""
    file = folder / FILE
    return load_file(file) if file.exists() else {}


def held(plan: Experiment) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Who would hold what in an experiment, clients × classes, and the classes' names: without a run."""
    ready = stage(plan, Storage())
    return ready.counts, ready.class_names
