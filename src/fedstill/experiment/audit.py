"""An audit of a run: attacks on what left its clients, and how much they learnt.

The last rounds' uploads are made again, to the bit, from the checkpoint before: they are what the server saw. Members
are the clients' training samples, others their local tests, so both are of one distribution.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedstill.core import record, rng
from fedstill.core.errors import FedstillError, UsageError
from fedstill.core.loop import rounds
from fedstill.core.record import Carries, State
from fedstill.core.shelf import Storage, reopen
from fedstill.core.turn import Party, turn
from fedstill.core.value import by_field
from fedstill.data.samples import Samples
from fedstill.experiment.audit_targets import READERS, ObservedTurn, by_odds, carried_by
from fedstill.experiment.config import Experiment, experiment, given_as_objects
from fedstill.experiment.drive import one_thread
from fedstill.experiment.examine import sent_model
from fedstill.experiment.inference import (
    Scores,
    auc,
    bootstrap,
    class_pull,
    correlation,
    first_linear,
    inputs_from_step,
    likelihood_ratio,
    likeness,
    tpr,
)
from fedstill.experiment.rundir import Checkpoint, RunDir
from fedstill.experiment.stage import Stage, stage
from fedstill.parts.architectures import same_form
from fedstill.parts.learner import LocalTraining
from fedstill.parts.secure_sums import SecureSums
from fedstill.transports import Inline


@dataclass(frozen=True)
class Scene:
    """A run as its auditor has it: the plan, the stage, the state before the last round and after it."""

    plan: Experiment
    ready: Stage
    before: Checkpoint | None
    after: Checkpoint

    @property
    def round(self) -> int:
        """The round whose uploads are attacked."""
        return self.before.round if self.before else 0

    @property
    def sums_only(self) -> bool:
        """Does the server see no single upload?"""
        return any(isinstance(wrapper, SecureSums) for wrapper in self.plan.wrappers)

    def stream(self, purpose: str) -> np.random.Generator:
        """A stream of the audit's own."""
        return rng.numpy_stream(self.plan.seed, f"audit {purpose}")


def audit(path: str | Path, shadows: int = 4) -> dict[str, Any]:
    """Attack what left the clients of a run.

    Args:
        path: the run's folder; its data must be found by name, as when it ran.
        shadows: shadow runs for the likelihood ratio, an even number; 0 leaves that attack out.

    Returns:
        What was learnt: `membership` (a row for each target and attack: AUC, and TPR at 1 % FPR, with intervals),
        `label_shares`, `reconstruction`; and ε where the run has one. It is written to the run's `audit.json` too.
    """
    if shadows < 0 or shadows % 2:
        raise UsageError(f"shadows = {shadows}: must be an even number ≥ 0")
    folder = RunDir.open(Path(path))
    with one_thread():
        scene = opened(folder)
        turns = {} if scene.sums_only else dict(observed_turns(scene))
        report = {
            "method": scene.plan.title,
            "round": scene.round + 1,
            "privacy": promised(folder),
            "membership": [*membership(scene, turns), *(by_shadows(scene, shadows) if shadows else [])],
            "label_shares": label_shares(scene, turns),
            "reconstruction": reconstruction(scene),
        }
    folder.write("audit.json", report)
    return report


def opened(folder: RunDir) -> Scene:
    """The run's plan, stage and last two states."""
    settings = folder.read("experiment.json")
    if objects := given_as_objects(settings):
        raise UsageError(f"{folder.path}: {objects[0]} was given as an object; an audit needs it by name")
    last, _ = folder.latest()
    if last is None:
        raise UsageError(f"{folder.path}: has no checkpoint to audit yet")
    plan = experiment(settings)
    if plan.pace is not None and plan.pace.overlapping:
        raise UsageError(
            f"{folder.path}: an audit reads the uploads of one round, and this run's rounds overlap (pace)"
        )
    earlier = [f for f in sorted((folder.path / "checkpoints").glob("[0-9]*.safetensors")) if int(f.stem) < last.round]
    before = record.loads(earlier[-1].read_bytes(), reopen(folder.storage)) if earlier else None
    return Scene(plan, stage(plan, Storage()), before, last)


def promised(folder: RunDir) -> dict[str, Any]:
    """ε and δ as the run's rounds tell them; empty where nothing was promised."""
    spent: dict[str, float] = {}
    promises: dict[str, Any] = {}
    for row in folder.rows():
        spent |= row["facts"].get("epsilon_spent", {})
        promises |= {k: row["facts"][k] for k in ("epsilon_clients", "delta_clients", "delta") if k in row["facts"]}
    return {**promises, **({"epsilon_samples": max(spent.values())} if spent else {})}


def observed_turns(scene: Scene) -> Iterator[tuple[int, ObservedTurn]]:
    """By client, the round's turns made again; an upload is as the turn made it, before it was packed."""
    method, env = scene.plan.method, scene.ready.env
    server = scene.before.server if scene.before else method.init_server(env.at(0))
    for client in scene.plan.active_in(scene.round):
        here = env.at(scene.round, client)
        down = method.download(here, server)
        state = scene.before.clients.get(client) if scene.before else None
        party = scene.ready.party(client)
        unpacked = tuple(w for w in party.wrappers if w.uploads(method.uploads()) is method.uploads())
        try:
            after, upload = turn(method, here, Party(party.data, unpacked), state, down)
            yield client, ObservedTurn(method, here, down, upload, after)
        except FedstillError:  # lost, or its budget is spent: nothing left it
            continue


def own_others(scene: Scene, client: int) -> tuple[Samples, Samples]:
    """A client's training samples, and samples of the same distribution that it was not trained on."""
    exam = scene.ready.exam
    return scene.ready.party(client).data, exam.pool[exam.local[client]]


def scores(scene: Scene, module: nn.Module, samples: Samples) -> Scores:
    """The odds of the true class, sample by sample."""
    return by_odds(scene.ready.env, module)(samples)


def row(scene: Scene, target: str, attack: str, members: Scores, others: Scores) -> dict[str, Any]:
    """How well members are told from others."""
    stream = scene.stream(f"{target} {attack}")
    return {
        "target": target,
        "attack": attack,
        "auc": bootstrap(auc, members, others, stream=stream),
        "tpr": bootstrap(tpr, members, others, stream=stream),
        "members": len(members),
        "others": len(others),
    }


def membership(scene: Scene, turns: Mapping[int, ObservedTurn]) -> Iterator[dict[str, Any]]:
    """The loss threshold on final models; on uploads, what each of their fields allows (`audit_targets`)."""
    env, method = scene.ready.env, scene.plan.method
    everyone = [own_others(scene, k) for k in range(env.clients)]
    whose = method.architectures(env, scene.after.server)
    for name, weights in method.models(env.at(scene.after.round - 1), scene.after.server).items():
        module = env.module(weights, whose.get(name))
        both = [(scores(scene, module, own), scores(scene, module, rest)) for own, rest in everyone]
        yield from pooled(scene, f"model {name}", "loss threshold", both)
    for what, attack, reader in READERS:
        both = []
        for client, observed in turns.items():
            score = reader(observed)
            if score is not None:
                own, rest = own_others(scene, client)
                both.append((score(own), score(rest)))
        yield from pooled(scene, f"upload of {what}", attack, both)


def pooled(scene: Scene, target: str, attack: str, both: list[tuple[Scores, Scores]]) -> Iterator[dict[str, Any]]:
    """One row over all clients; nothing where nobody has samples of both kinds."""
    kept = [(own, rest) for own, rest in both if len(own) and len(rest)]
    if kept:
        members, others = (np.concatenate(part) for part in zip(*kept, strict=True))
        yield row(scene, target, attack, members, others)


def by_shadows(scene: Scene, count: int) -> Iterator[dict[str, Any]]:
    """The likelihood ratio on the final global model: each shadow run has one half of every client's samples."""
    env, method = scene.ready.env, scene.plan.method
    targets = method.models(env.at(scene.after.round - 1), scene.after.server)
    pairs = [own_others(scene, k) for k in range(env.clients)]
    if not targets or any(not len(rest) for _, rest in pairs):
        return
    name = list(targets)[-1]
    whole = [Samples.concat(pair) for pair in pairs]
    sizes, stream = [len(w) for w in whole], scene.stream("shadows")
    inside = np.zeros((count, sum(sizes)), dtype=bool)
    for s in range(0, count, 2):
        inside[s] = np.concatenate([stream.permutation(n) < n // 2 for n in sizes])
        inside[s + 1] = ~inside[s]
    joint = Samples.concat(whole)
    shadow = [
        scores(scene, shadow_run(scene, s, name, [w[m] for w, m in _cut(whole, inside[s])]), joint)
        for s in range(count)
    ]
    whose = method.architectures(env, scene.after.server)
    target = scores(scene, env.module(targets[name], whose.get(name)), joint)
    ratio = likelihood_ratio(target, np.stack(shadow), inside)
    member = np.concatenate([np.arange(n) < len(own) for n, (own, _) in zip(sizes, pairs, strict=True)])
    yield row(scene, f"model {name}", f"likelihood ratio, {count} shadow runs", ratio[member], ratio[~member])


def _cut(whole: list[Samples], chosen: Any) -> Iterator[tuple[Samples, Tensor]]:
    start = 0
    for samples in whole:
        yield samples, torch.from_numpy(np.flatnonzero(chosen[start : start + len(samples)]))
        start += len(samples)


def shadow_run(scene: Scene, number: int, model: str, data: list[Samples]) -> nn.Module:
    """The model that the same run would have made of other samples and from another seed."""
    plan, method = scene.plan, scene.plan.method
    seed = rng.key(plan.seed, "shadow", number)
    env = replace(scene.ready.env, seed=seed, sizes=tuple(map(len, data)), storage=Storage())
    link = Inline(method, lambda k: Party(data[k], plan.wrappers), env.shelf("clients"))
    server = None
    for done in rounds(method, env, link, plan.active_in, scene.after.round, wrappers=plan.wrappers):
        server = done.server
    weights = method.models(env.at(scene.after.round - 1), server)[model]
    return env.module(weights, method.architectures(env, server).get(model))


def label_shares(scene: Scene, turns: Mapping[int, ObservedTurn]) -> dict[str, Any] | None:
    """How well an update tells which labels its client has; beside it, how well the shares of all clients tell it."""
    env = scene.ready.env
    pulls, shares, mean = [], [], scene.ready.counts.sum(0) / scene.ready.counts.sum()
    for client, observed in turns.items():
        after = carried_by(observed.upload, Carries.WEIGHTS)
        base = _weights_before(observed.down, after[0]) if after else None
        pull = class_pull(base, after[0], env.classes) if base else None
        if pull is not None:
            counts = scene.ready.counts[client]
            pulls.append(pull.numpy())
            shares.append(counts / max(counts.sum(), 1))
    if not pulls:
        return None
    correlations, guessed = correlation(pulls, shares), correlation([mean] * len(shares), shares)
    interval = bootstrap(_mean, correlations, stream=scene.stream("labels"))
    return {**interval, "guessing": _mean(guessed), "clients": len(pulls)}


def _weights_before(down: Any, after: State) -> State | None:
    """The weights that came down, where those that went up are of the same form."""
    weights = by_field(down).get("weights")
    return weights if isinstance(weights, Mapping) and same_form(weights, after) else None


def _mean(values: Scores) -> float:
    return float(values.mean())


def reconstruction(scene: Scene) -> dict[str, Any]:
    """One sample, one step: the first client's turn with a batch of one, read off the first layer.

    `likeness` is the cosine between what was read and the nearest of the client's samples; 1 is the sample itself.
    """
    method, env = scene.plan.method, scene.ready.env.at(0, 0)
    if scene.sums_only:
        return {"skipped": "the server sees sums over the round's clients only, never one client's step"}
    if not isinstance(method, LocalTraining) or "weights" not in {f.name for f in fields(method.uploads())}:
        return {"skipped": "no weights leave the clients of this method"}
    module = sent_model(env, method.template(env), 0)
    if module is None:
        return {"skipped": "only a part of the model leaves the clients of this method"}
    layer = first_linear(module)
    if layer is None:
        return {"skipped": "the first layer is not fully connected, so a step does not lay its input open exactly"}
    plainest = {"batch": 1, "local_steps": 1, "optimizer": "sgd", "momentum": 0.0, "weight_decay": 0.0}
    try:
        single = replace(method, **plainest)
    except UsageError as error:
        return {"skipped": f"this method takes no step on a single sample ({error})"}
    chain = tuple(w for w in scene.plan.wrappers if w.uploads(method.uploads()) is method.uploads())
    data = scene.ready.party(0).data
    down = single.download(env, single.init_server(env.at(0)))
    try:
        _, upload = turn(single, env, Party(data, chain), None, down)
    except FedstillError as error:
        return {"skipped": str(error)}
    before = _weights_before(down, upload.weights)
    if before is None:
        return {"skipped": "the weights that come down are of another network, so nobody sees the client's step"}
    inputs = inputs_from_step(before, upload.weights, layer)
    return {"likeness": likeness(inputs, data.inputs()), "samples": len(data)}
