"""The setting of a deployed run: who takes part with what, agreed at enrolment; the stage that follows from it."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from fedstill.core.errors import DataError, UsageError
from fedstill.core.method import Env
from fedstill.core.shelf import Storage
from fedstill.core.turn import Party
from fedstill.data import Dataset, Samples, load
from fedstill.data.summary import Summary, agreed, common_classes, pooled
from fedstill.experiment.config import Experiment, experiment
from fedstill.experiment.evaluate import Exam
from fedstill.experiment.stage import Stage, assigned, builder, device_of, pixels_of
from fedstill.flower.messages import Enrolled


@dataclass(frozen=True)
class Setting:
    """Everything the parties share; client k is the k-th site by name."""

    run: str
    experiment: Mapping[str, Any]
    sites: tuple[str, ...]
    sizes: tuple[int, ...]
    tests: tuple[int, ...]
    class_names: tuple[str, ...]
    shape: tuple[int, int, int]
    """Of the images as they are brought, before they are fitted to the model."""
    dtype: str
    lowest: float
    mean: tuple[float, ...]
    std: tuple[float, ...]
    specs: tuple[str, ...]
    """The model of every client, and last the server's."""

    @property
    def plan(self) -> Experiment:
        """The experiment."""
        return experiment(self.experiment)

    def text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> "Setting":
        """From JSON."""
        return cls(**_tuples(text))

    def sample(self) -> Dataset:
        """One black image of the form that all sites bring."""
        x = torch.full((1, *self.shape), self.lowest, dtype=getattr(torch, self.dtype))
        samples = Samples(x, torch.zeros(1, dtype=torch.int64), self.mean, self.std)
        return Dataset("sites", samples, None, len(self.class_names), self.class_names)

    def fitted(self, samples: Samples) -> Samples:
        """Images in the size that the models take."""
        return samples.fit(pixels_of(self.specs), 0 if self.dtype == "uint8" else self.lowest)

    def env(self, storage: Storage, device: str, public: Dataset | None = None) -> Env:
        """What methods see, the same at every party."""
        shape = self.fitted(self.sample().train).shape
        known = None if public is None else public.fit(pixels_of(self.specs))
        return Env(
            seed=self.plan.seed,
            sizes=self.sizes,
            classes=len(self.class_names),
            shape=shape,
            build=builder(self.specs, shape, len(self.class_names)),
            mean=self.mean,
            std=self.std,
            public=None if known is None else known.train,
            public_classes=None if known is None or known.class_names == self.class_names else known.classes,
            device=device_of(device),
            storage=storage,
        )

    def stage(self, storage: Storage, public: Dataset | None = None) -> Stage:
        """The hub's stage: no data, only what is known of them."""
        env = self.env(storage, self.plan.device, public)
        nothing = self.fitted(self.sample().train)[:0]
        exam = Exam(nothing, (), None, env.classes, env.device)
        counts = np.zeros((len(self.sites), env.classes), np.int64)

        def absent(client: int) -> Party:
            raise UsageError(f"client {client} is site {self.sites[client]}: its data are not here")

        return Stage(env, absent, exam, (), counts, self.class_names, self.shape[1:], ())


def settle(run: str, plan: Experiment, enrolled: Mapping[str, Enrolled]) -> Setting:
    """What follows from the sites' introductions; refuses sites that do not fit together."""
    sites = tuple(sorted(enrolled))
    known = [introduced(enrolled[site]) for site in sites]
    agreed(known, [f"site {site}" for site in sites])
    classes = common_classes([party.class_names for party in known])
    if len(classes) < 2:
        raise DataError(f"all sites have one class only ({classes[0]}); at least two are needed")
    mean, std = pooled(known)
    plan = replace(plan, data="sites", clients=len(sites), transport="flower")
    base = Setting(
        run, plan.plain(), sites, tuple(enrolled[s].samples for s in sites), tuple(enrolled[s].tests for s in sites),
        classes, known[0].shape, known[0].dtype, min(party.lowest for party in known), mean, std, (),
    )  # fmt: skip
    return replace(base, specs=_models(plan, base.sample(), [enrolled[site].model for site in sites], sites))


def _models(plan: Experiment, sample: Dataset, asked: Sequence[str], sites: Sequence[str]) -> tuple[str, ...]:
    """Every site's model: its own where it named one, else what the experiment gives it; last the server's."""
    *given, server = assigned(plan, sample)
    chosen = [mine if mine != "auto" else theirs for mine, theirs in zip(asked, given, strict=True)]
    if plan.method.one_architecture:
        if plan.model == "auto" and not plan.models and asked[0] != "auto":
            server = asked[0]
            chosen = [mine if mine != "auto" else server for mine in asked]
        for site, model in zip(sites, chosen, strict=True):
            if model != server:
                raise UsageError(f"site {site} has model {model}: {plan.title} averages weights, all need {server}")
    elif plan.server_model is None and not plan.models and plan.model == "auto":
        server = chosen[0]
    return (*chosen, server)


def introduced(site: Enrolled) -> Summary:
    """What a site says of its data, checked as far as that can be done from afar."""
    try:
        known = Summary(**_tuples(site.summary))
        numbers = (*known.mean, *known.std, *known.measured_mean, *known.measured_std, known.lowest)
        sound = (
            all(math.isfinite(number) for number in numbers)
            and len(known.shape) == 3
            and len(known.mean)
            == len(known.std)
            == len(known.measured_mean)
            == len(known.measured_std)
            == known.shape[0]
            and known.dtype in ("uint8", "float32")
            and 0 < site.samples <= known.size
            and site.tests >= 0
            and all(isinstance(name, str) for name in known.class_names)
        )
    except (ValueError, TypeError, AttributeError, IndexError):
        sound = False
    if not sound:
        raise DataError("its introduction is not sound")
    return known


def _tuples(text: str) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in json.loads(text).items()}


def public_set(plan: Experiment, here: str | None) -> Dataset | None:
    """The public set every party has: at `here` on this machine, else where the experiment says."""
    return load(here or plan.public) if isinstance(plan.public, str) else None


def checksum(dataset: Dataset | None) -> str:
    """A checksum of a data set's training samples, so that parties can tell that they have the same."""
    if dataset is None:
        return ""
    data = hashlib.sha256(dataset.train.x.numpy().tobytes())
    data.update(dataset.train.y.numpy().tobytes())
    return data.hexdigest()[:16]


def deployable(plan: Experiment) -> Experiment:
    """The plan for sites, or why it cannot be deployed."""
    if plan.attack is not None:
        raise UsageError("attack: sites are real; attacks can only be simulated (fedstill run)")
    if plan.drop:
        raise UsageError(f"drop = {plan.drop}: sites are real; drop-outs can only be simulated (fedstill run)")
    if plan.public is not None and not isinstance(plan.public, str):
        raise UsageError(
            f"public = {plan.public}: {plan.title} needs a public set that the hub and every site can read; "
            "name a data set or a path"
        )
    if not all(isinstance(spec, str) for spec in (plan.model, plan.server_model or "")):
        raise UsageError("model: a deployed experiment names its models; objects cannot travel")
    return replace(plan, data="sites", transport="flower")
