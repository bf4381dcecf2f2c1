"""The stage of a run, set from an experiment: who has which data, which model, and which exam."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedstill.core import rng
from fedstill.core.errors import DataError, UsageError
from fedstill.core.kind import Kind
from fedstill.core.method import Env
from fedstill.core.record import Carries, carried
from fedstill.core.shelf import Storage
from fedstill.core.turn import AnyMethod, Party, forged
from fedstill.core.value import plain
from fedstill.data import Dataset, Samples, load, load_clients, pool
from fedstill.data.columns import is_table
from fedstill.data.kinds import Image, Table, Tokens
from fedstill.data.look import doubts
from fedstill.data.own import Own, local_stream, pool_own, read_own
from fedstill.data.partition import Split, local_split, matching_test, public_split
from fedstill.data.pixels import fitted
from fedstill.data.portions import Portions
from fedstill.data.reading import Reading
from fedstill.data.summary import agreed, common_classes, pooled, recast, summary
from fedstill.experiment.config import Experiment
from fedstill.experiment.evaluate import Exam
from fedstill.experiment.fingerprint import Fingerprint, fingerprint
from fedstill.experiment.metrics import ATTACK_SUCCESS, Scorer
from fedstill.experiment.networks import assigned, builder, pixels_of
from fedstill.experiment.signature import Signature
from fedstill.parts.architectures import SERVER, kinds_of, same_form
from fedstill.parts.backdoor import Backdoor
from fedstill.parts.learner import LocalTraining

Indices = Sequence[np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Stage:
    """Everything that exists before the first round."""

    env: Env
    party: Callable[[int], Party]
    exam: Exam
    parts: Portions
    counts: np.ndarray[Any, Any]
    """Training samples, clients × classes."""
    class_names: tuple[str, ...]
    notes: tuple[str, ...]
    """What a user should know: samples that were moved, clients without a test …"""
    fingerprint: Fingerprint | None = None
    """Of the data and who holds which; None where the data are elsewhere."""
    signature: Signature | None = None
    """What using the run's models will need."""
    client_names: tuple[str, ...] = ()
    """Where clients have names: those of their sites."""
    dealt: Sequence[np.ndarray[Any, Any]] = ()
    """Every client's samples before any became its local test: what a saved partition holds."""


def stage(experiment: Experiment, storage: Storage) -> Stage:
    """Load, split and assign, from the experiment's seed alone."""
    whole, dataset, private, owners, tests = _data(experiment)
    specs = assigned(experiment, dataset)
    shared = _public(experiment, dataset, private)
    raw, dataset = dataset, fitted(dataset, pixels_of(specs))
    apart = _public_data(experiment)
    public, public_classes = _public_set(experiment, dataset, specs, shared, apart)
    if owners is None:
        stream = rng.numpy_stream(experiment.dealt_by, "partition")
        split = experiment.partition.deal(dataset, np.setdiff1d(private, shared), experiment.clients, stream)
    else:
        split = Split(tuple(np.setdiff1d(part, shared) for part in owners))
    train, exam = _exam(experiment, dataset, split.parts, tests, split.tests)
    notes = (*dataset.notes, *doubts(whole), *split.notes)
    if experiment.public == "train":  # DaFKD's FedDF: unlabelled training samples as the proxy
        public = dataset.train[np.sort(train.flat)]
        notes += (f"public = train: the public set is the clients' own {len(public)} training samples",)
    untested = np.flatnonzero(exam.local.sizes == 0)
    if len(untested):
        left = "left out of FM and WLP" if len(untested) < len(exam.local) else "there is no AMP; ask for fewer clients"
        notes += (f"{_clients(untested)} have no test samples: {left}",)
    held = train
    if not experiment.method.federated:
        held = Portions.of([np.sort(train.flat)])
        notes += (f"{experiment.title}: all {len(held[0])} training samples are in one place; this is no federation",)
    notes += _slow(experiment, dataset.kind)
    env = Env(
        seed=experiment.seed,
        sizes=tuple(held.sizes.tolist()),
        classes=dataset.classes,
        kind=dataset.kind,
        build=builder(specs, dataset.kind, dataset.classes),
        public=public,
        public_classes=public_classes,
        device=exam.device,
        storage=storage,
    )
    _refuse_unfit(experiment, env, specs)
    labels = dataset.train.y.numpy()
    counts = train.counts(labels, dataset.classes)
    signature = Signature.describe(raw, specs, env.sizes)
    print_of = fingerprint([whole] if apart is None else [whole, apart], train, exam.local)
    _refuse_others(experiment, print_of.data)
    party = _parties(experiment, dataset.train, held)
    known = (dataset.class_names, notes, print_of, signature, split.names, split.parts)
    return Stage(env, party, exam, train, counts, *known)


def _clients(numbers: np.ndarray[Any, Any], most: int = 20) -> str:
    """Some clients by their numbers, in words; of many the first few.

    >>> _clients(np.arange(3)), _clients(np.arange(1000), most=2)
    ('clients 0, 1, 2', 'clients 0, 1 and 998 more')
    """
    more = f" and {len(numbers) - most:,} more" if len(numbers) > most else ""
    return f"clients {', '.join(map(str, numbers[:most]))}{more}"


def _public_set(
    experiment: Experiment,
    dataset: Dataset,
    specs: tuple[Any, ...],
    shared: np.ndarray[Any, Any],
    apart: Dataset | None,
) -> tuple[Samples | None, int | None]:
    """The public samples, and how many classes they have where these are not the data's own.

    They are the `shared` ones among the training samples, or those of the data set that stands `apart`.
    """
    if apart is None:
        return dataset.train[shared] if len(shared) else None, None
    other = fitted(apart, pixels_of(specs))
    public = _alike(other.train, dataset, experiment.public)
    if other.class_names == dataset.class_names:
        return public, None
    if experiment.method.same_classes:
        raise UsageError(f"public = {experiment.public!r}: {experiment.title} needs samples of the data's own classes")
    return public, other.classes


def _parties(experiment: Experiment, samples: Samples, held: Indices) -> Callable[[int], Party]:
    """By a client's number, the samples it holds and what stands around its turns."""
    places = {client: place for place, client in enumerate(experiment.malicious_clients)}

    def party(client: int) -> Party:
        chain = experiment.wrappers
        if experiment.attack and client in places:
            chain = forged(experiment.method, chain, experiment.attack.on(places[client]))
        return Party(samples[held[client]], chain)

    return party


def _refuse_unfit(experiment: Experiment, env: Env, specs: tuple[Any, ...]) -> None:
    """What cannot work is named before anything runs: a model by the data, method or a wrapper, a wrapper by sizes."""
    for place in {spec if isinstance(spec, str) else id(spec): i for i, spec in enumerate(specs)}.values():
        module = env.build(place, None)
        if experiment.method.needs_features:
            _ = module.head  # a model without features says so
        for wrapper in experiment.wrappers:
            if wrong := wrapper.unfit(module):
                raise UsageError(f"model: {plain(wrapper)['name']} cannot work with it: {wrong}")
    for wrapper in experiment.wrappers:
        if wrong := wrapper.beyond(experiment.method, env):
            raise UsageError(f"wrappers = {plain(wrapper)['name']}: {wrong}")
    chain = experiment.wrappers if experiment.attack is None else (*experiment.wrappers, experiment.attack)
    if reader := next((wrapper for wrapper in chain if wrapper.reads_steps), None):
        _refuse_other_networks(experiment.method, env, plain(reader)["name"])


def _refuse_other_networks(method: AnyMethod, env: Env, reader: str) -> None:
    """What takes uploads as steps needs what came down to be of the client's own network."""
    server = method.init_server(env)
    for client in set(kinds_of(env).values()) - {SERVER}:
        here = env.at(0, client)
        up, down = method.template(here), method.download(here, server)
        if not same_form(carried(up, Carries.WEIGHTS), carried(down, Carries.WEIGHTS)):
            raise UsageError(
                f"models: the weights that come down are of another network than a client's, and {reader} takes its "
                f"upload as a step from them; give all one model, or leave {reader} out"
            )


def _refuse_others(experiment: Experiment, digest: str) -> None:
    """A run goes on with the samples it began with."""
    if experiment.fingerprint not in (None, digest):
        raise DataError(
            f"data = {experiment.plain()['data']}: not the samples that this run had "
            f"(fingerprint {digest}, the run's is {experiment.fingerprint})"
        )


def data_fingerprint(experiment: Experiment) -> str:
    """The fingerprint of an experiment's data as they are now, before any is dealt."""
    sets = [_data(experiment)[0], _public_data(experiment)]
    return fingerprint([part for part in sets if part is not None], (), ()).data


def _public_data(experiment: Experiment) -> Dataset | None:
    """The data set that is public, where it is one of its own."""
    if not isinstance(experiment.public, str) or experiment.public == "train":
        return None
    return load(experiment.public, experiment.reading if is_table(Path(experiment.public)) else None)


def _data(experiment: Experiment) -> tuple[Dataset, Dataset, np.ndarray[Any, Any], Indices | None, Indices | None]:
    """The data set as it was read and the part of it that is used, the indices to be split, and where clients brought
    their own: who owns, and is tested on, which."""
    data = experiment.data
    if isinstance(data, list):
        own = _own(data, experiment.reading)
        dataset, train, test = pool_own(own, "own clients")
        return dataset, dataset, np.concatenate(train), train, test
    whole = dataset = load(data, experiment.reading)
    if experiment.samples:
        stream = rng.numpy_stream(experiment.dealt_by, "subset")
        dataset = dataset.subset(experiment.samples, stream, balanced=experiment.balanced)
    return whole, dataset, np.arange(len(dataset.train)), None, None


def _alike(public: Samples, dataset: Dataset, title: str) -> Samples:
    """Public samples in the form of the data's own; images keep their own normalisation."""
    if isinstance(dataset.kind, Image):
        if public.shape != dataset.train.shape:
            raise DataError(f"public = {title!r}: images are {public.shape}, the data's {dataset.train.shape}")
        return public
    summaries = [summary(samples, ()) for samples in (dataset.train, public)]
    agreed(summaries, ["the data", f"public = {title!r}"])
    joint = pooled(summaries)
    if isinstance(joint, Table) and isinstance(dataset.kind, Table) and joint.categories != dataset.kind.categories:
        raise DataError(f"public = {title!r}: has categories that the data have not")
    return recast(public, dataset.kind)


def _slow(experiment: Experiment, kind: Kind) -> tuple[str, ...]:
    """A note where texts are to be learnt by plain gradients: a word that is rare has next to none."""
    method = experiment.method
    if not (isinstance(kind, Tokens) and isinstance(method, LocalTraining)) or method.optimizer != "sgd":
        return ()
    return (f"texts learn slowly with optimizer = sgd, lr = {method.lr:g}: try optimizer = adam, lr = 0.001",)


def _own(data: list[Any], reading: Reading | None) -> list[Own]:
    """Clients' own data, (x, y) or the name or path of each, with common classes and normalisation."""
    if not all(isinstance(part, str) for part in data):
        classes = pool(loaded := load_clients(data))[0].class_names
        return [Own(samples, None, classes) for samples in loaded]
    brought = [read_own(spec, reading) for spec in data]
    known = [summary(own.train, own.class_names) for own in brought]
    agreed(known, data)
    classes = common_classes([own.class_names for own in brought])
    return [own.cast(pooled(known), classes) for own in brought]


def _public(experiment: Experiment, dataset: Dataset, private: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Indices of the training samples that become the public set."""
    if experiment.public is None or isinstance(experiment.public, str):
        return np.empty(0, np.int64)
    if not 0 < float(experiment.public) < 1:
        raise UsageError(f"public = {experiment.public}: must be a share > 0 and < 1, or a data set")
    stream = rng.numpy_stream(experiment.dealt_by, "public")
    return private[public_split(dataset.train.y.numpy()[private], stream, float(experiment.public))[0]]


def _exam(
    experiment: Experiment, dataset: Dataset, parts: Indices, brought: Indices | None, own_tests: Indices | None
) -> tuple[Portions, Exam]:
    """Every client's training samples, and the exam: local tests, and the global test where there is one.

    Local tests are parts of the training samples that clients `brought`, or their `own_tests` in the global test, or a
    share of their training samples.
    """
    device = device_of(experiment.device)
    labels = dataset.train.y.numpy()
    tests = dataset.test
    whole: torch.Tensor | None
    stream = rng.numpy_stream(experiment.dealt_by, "local test")
    if own_tests is not None and tests is not None and any(len(own) for own in own_tests):
        parts, pool, local = _site_tests(experiment, dataset, tests, parts, own_tests)
        whole = torch.arange(len(pool) - len(tests), len(pool))
    elif (experiment.local_test and not dataset.overlapping) or brought is not None:
        parts, held = (
            local_split(parts, stream, experiment.local_test)
            if brought is None
            else _own_tests(experiment, parts, brought)
        )
        local = Portions(np.arange(len(held.flat)), held.sizes)
        pool = dataset.train[held.flat]
        whole = None if tests is None else torch.arange(len(pool), len(pool) + len(tests))
        pool = pool if tests is None else Samples.concat([pool, tests])
    else:
        if tests is None:
            raise UsageError(f"local_test = 0: {dataset.name} has no test part; keep a share of each client's samples")
        local = matching_test(Portions.of(parts).counts(labels, dataset.classes), tests.y.numpy(), stream)
        pool, whole = tests, torch.arange(len(tests))
    scorer = Scorer.of(experiment.metric, experiment.metrics)
    if isinstance(experiment.attack, Backdoor):
        scorer = replace(scorer, beside=(ATTACK_SUCCESS,))
    exam = Exam(pool, local, whole, dataset.classes, device, threads=os.cpu_count() or 1, scorer=scorer)
    return Portions.of(parts), exam


def _site_tests(
    experiment: Experiment, dataset: Dataset, tests: Samples, parts: Indices, own_tests: Indices
) -> tuple[Indices, Samples, Portions]:
    """Sites with test samples of their own are tested on these; the others on a share of their training samples.

    Returns what each trains on, the pool of all test samples (the global test last), and each one's places in it.
    """
    nothing = np.empty(0, np.int64)
    wanting = tuple(nothing if len(test) else part for part, test in zip(parts, own_tests, strict=True))
    kept, held = _own_tests(experiment, wanting, (nothing,) * len(parts))
    train = [part if len(test) else rest for part, rest, test in zip(parts, kept, own_tests, strict=True)]
    pool = Samples.concat([dataset.train[held.flat], tests])
    shares = Portions(np.arange(len(held.flat)), held.sizes)
    local = [test + len(held.flat) if len(test) else shares[k] for k, test in enumerate(own_tests)]
    return train, pool, Portions.of(local)


def _own_tests(experiment: Experiment, parts: Indices, brought: Indices) -> tuple[Portions, Portions]:
    """Clients that brought their own data are tested on the test part they brought, else on a share of their samples.

    The cut is keyed by client, so that a site makes the same one without knowing the other sites.
    """
    train, held = [], []
    for client, (part, test) in enumerate(zip(parts, brought, strict=True)):
        if not len(test) and experiment.local_test:
            (part,), (test,) = local_split([part], local_stream(experiment.dealt_by, client), experiment.local_test)
        train.append(part)
        held.append(test)
    return Portions.of(train), Portions.of(held)


def device_of(name: str) -> torch.device:
    """A torch device by name; `auto` takes an accelerator where there is one."""
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return torch.device(next(kind for kind in ("cuda", "mps", "cpu") if there[kind]))
    if name not in there:
        raise UsageError(f"device = {name!r}: must be one of auto, cpu, cuda, mps")
    if not there[name]:
        raise UsageError(f"device = {name!r}: not available on this machine")
    return torch.device(name)
