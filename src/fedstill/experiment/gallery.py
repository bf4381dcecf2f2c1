"""The pictures a run leaves for its report: what generators on clients imagine, and beside it some test samples.

A report reads them, and no data. Images stand alone; of series and rows nobody sees what is real without some that are.
A hub has no test samples, so a deployed run keeps none.
"""

from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file
from safetensors.torch import save

from fedstill.core.method import Env
from fedstill.core.record import write
from fedstill.core.shelf import Shelf, Storage
from fedstill.core.turn import method_state
from fedstill.data import Samples
from fedstill.data.kinds import Image, Tokens
from fedstill.experiment.config import Experiment
from fedstill.experiment.stage import stage

FILE = "gallery.safetensors"
CLIENTS, SAMPLES, OTHERS = 2, 13, 64
"""Of how many clients imagined samples are kept, and how many: images, and samples of other kinds."""
REAL = "the data"
"""The name under which test samples stand."""


def write_gallery(folder: Path, plan: Experiment, env: Env, states: Shelf, rounds: int, tests: Samples) -> None:
    """Keep what the first clients' own generators imagine after so many rounds; nothing where they have none.

    Of series and rows some of the `tests`, evenly over all of them, are kept beside it.
    """
    if isinstance(env.kind, Tokens):  # embeddings of texts show nobody anything
        return
    count = SAMPLES if isinstance(env.kind, Image) else OTHERS
    pictures = {}
    for client in sorted(states)[:CLIENTS]:
        samples = plan.method.imagined(env.at(rounds, client), method_state(states[client]), count)
        if samples is not None:
            pictures[f"client {client}"] = env.kind.kept(samples.cpu()).contiguous()
    if pictures and not isinstance(env.kind, Image) and len(tests):
        chosen = torch.linspace(0, len(tests) - 1, min(count, len(tests))).long()
        pictures[REAL] = env.kind.kept(tests.inputs(chosen)).contiguous()
    if pictures:
        write(folder / FILE, save(pictures))


def read_gallery(folder: Path) -> dict[str, NDArray[Any]]:
    """Samples as their kind keeps them (images as bytes) by who imagined them; nothing where the run kept none."""
    file = folder / FILE
    return load_file(file) if file.exists() else {}


def held(plan: Experiment) -> tuple[NDArray[Any], tuple[str, ...]]:
    """Who would hold what in an experiment, clients × classes, and the classes' names: without a run."""
    ready = stage(plan, Storage())
    return ready.counts, ready.class_names
