"""Passes through classifier and generator for each batch of a client (FedKF, table IX): counted while batches run.

A forward pass is a batch that goes through a network, a backward pass a gradient that comes back through it. A
classifier's pass is half its first layer and half its head, so that features fed to the head alone count as half a
pass, as the paper sets it down. What a turn does once, not for each batch, is left out: turns of two lengths are
compared.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from fedstill.core.classifier import Classifier
from fedstill.core.errors import UsageError
from fedstill.core.method import Env, Reply
from fedstill.core.shelf import Storage
from fedstill.core.turn import Party, turn
from fedstill.experiment.config import Experiment
from fedstill.experiment.drive import one_thread
from fedstill.experiment.stage import stage
from fedstill.parts.learner import LocalTraining

METRICS = ("classifier_forward", "classifier_backward", "generator_forward", "generator_backward")
SHORT, LONG = 1, 3
"""Batches of the two turns that are compared."""


def passes(plan: Experiment) -> dict[str, float]:
    """Passes for each batch in the last of the plan's rounds, by a client with enough samples."""
    method: Any = plan.method
    if not isinstance(method, LocalTraining):
        raise UsageError(f"{plan.title}: its turn has no batches to count")
    with one_thread():
        ready = stage(plan, Storage())
        client = max(range(ready.env.clients), key=lambda k: ready.env.sizes[k])
        method = replace(method, batch=min(method.batch, max(1, ready.env.sizes[client] // LONG)))
        server = method.init_server(ready.env.at(0))
        state = None
        for t in range(plan.rounds - 1):
            down = method.download(ready.env.at(t, client), server)
            brief = replace(method, local_steps=SHORT)
            state, upload = turn(brief, ready.env.at(t, client), ready.party(client), state, down)
            server = method.server(ready.env.at(t), server, [Reply(client, ready.env.sizes[client], upload)])
        here = ready.env.at(plan.rounds - 1, client)
        down = method.download(here, server)
        counts = [
            _counted(replace(method, local_steps=steps), here, ready.party(client), state, down)
            for steps in (SHORT, LONG)
        ]
    return {name: (counts[1][name] - counts[0][name]) / ((LONG - SHORT) * method.batch) for name in METRICS}


def _counted(method: Any, env: Env, party: Party, state: Any, down: Any) -> Counter[str]:
    """Samples that went through each network, forward and backward, in one turn."""
    count: Counter[str] = Counter()
    known: set[int] = set()
    kept: list[nn.Module] = []  # an id is a module's own only while the module is there

    def build(client: int | None, seed: int | None) -> Classifier:
        made = env.build(client, seed)
        first = next(part for part in made.modules() if not list(part.children()) and list(part.parameters()))
        for part in (first, made.head):
            part.register_forward_hook(lambda _, __, out: _note(count, "classifier", out, 0.5))
        known.update(id(part) for part in made.modules())
        kept.append(made)
        return made

    with _generators(count, known):
        turn(method, replace(env, build=build), party, state, down)
    return count


@contextmanager
def _generators(count: Counter[str], known: set[int]) -> Iterator[None]:
    """Any other network that is called, not as a part of one, is a generator."""
    depth = 0

    def enter(module: nn.Module, _: Any) -> None:
        nonlocal depth
        depth += 1

    def leave(module: nn.Module, _: Any, out: Any) -> None:
        nonlocal depth
        depth -= 1
        if depth == 0 and id(module) not in known and any(True for _ in module.parameters()):
            _note(count, "generator", out, 1.0)

    hooks = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _note(count: Counter[str], network: str, out: Any, share: float) -> None:
    """Count the samples of an output now, and again when their gradient comes back."""
    out = out[0] if isinstance(out, tuple) else out
    samples: Any = share * len(out)
    count[f"{network}_forward"] += samples

    def back(gradient: Tensor) -> None:
        count[f"{network}_backward"] += samples

    if out.requires_grad:
        out.register_hook(back)
