"""Who has which network: the models of an experiment by client, and how modules of them are built."""

from collections.abc import Hashable, Sequence
from typing import Any

import torch

from fedstill.core.classifier import Classifier
from fedstill.core.errors import UsageError
from fedstill.core.kind import Kind
from fedstill.core.method import Env
from fedstill.core.prototypes import Prototypes
from fedstill.data import Dataset, Samples
from fedstill.data.pixels import fit
from fedstill.experiment.config import Experiment
from fedstill.models import auto, initial, models


def assigned(experiment: Experiment, dataset: Dataset) -> tuple[Any, ...]:
    """The model of every client, and last the server's.

    Fewer names than clients are shared out in groups: pairs first, then one each (FedTKD's table 1).
    """
    names = experiment.models
    if not names:
        only = experiment.model
        if isinstance(only, str) and only == "auto":
            only = auto(dataset.kind)
        return (*[only] * experiment.clients, experiment.server_model or only)
    count, clients = len(names), experiment.clients
    if count > clients:
        raise UsageError(f"models = {', '.join(map(str, names))}: {count} names for {clients} clients")
    if clients <= 2 * count:
        place = [k * count // clients for k in range(clients)]
    else:
        place = [k // 2 if k < 2 * count else k % count for k in range(clients)]
    own = list(names) if count == clients else [names[i] for i in place]
    return (*own, experiment.server_model or own[0])


def pixels_of(specs: tuple[Any, ...]) -> tuple[int, ...] | None:
    """The image sides that all these models take."""
    known = [models[spec] for spec in set(filter(_named, specs))]
    asked = [set(m.pixels) for m in known if isinstance(m, type) and issubclass(m, Classifier) and m.pixels]
    return tuple(sorted(set.intersection(*asked))) if asked else None


def _named(spec: Any) -> bool:
    return isinstance(spec, str) and ":" not in spec


def builder(specs: tuple[Any, ...], kind: Kind, classes: int) -> Prototypes:
    """How `Env` builds modules: `specs` names the model of every client, and last the server's."""

    def spec(client: int | None) -> Any:
        return specs[-1 if client is None else client]

    def which(client: int | None) -> Hashable:
        chosen = spec(client)
        return chosen if isinstance(chosen, str) else id(chosen)

    return Prototypes(which, lambda client, seed: initial(spec(client), kind, classes, seed))


def without_data(specs: tuple[Any, ...], brought: Kind, classes: int, sizes: Sequence[int], **known: Any) -> Env:
    """What building modules of these models needs where there are no data.

    Args:
        specs: the model of every client, and last the server's.
        brought: the kind of raw samples, before images are fitted to the models.
        classes: how many classes there are.
        sizes: training samples of every client.
        known: other fields of `Env`.
    """
    blank = Samples(brought.blank(1), torch.zeros(1, dtype=torch.int64), brought)
    kind = fit(blank, pixels_of(specs)).kind
    return Env(sizes=tuple(sizes), classes=classes, kind=kind, build=builder(specs, kind, classes), **known)
