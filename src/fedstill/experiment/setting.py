"""The setting of a run whose data stay on their sites: who takes part with what, and the stage that follows from it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from fedstill.core.errors import UsageError
from fedstill.core.kind import Kind, kind_of
from fedstill.core.method import Env
from fedstill.core.shelf import Storage
from fedstill.core.turn import Party
from fedstill.data import Dataset, Samples
from fedstill.data.pixels import fit, fitted
from fedstill.data.portions import Portions
from fedstill.experiment.config import Experiment, experiment
from fedstill.experiment.evaluate import Exam
from fedstill.experiment.networks import builder, pixels_of
from fedstill.experiment.signature import Signature
from fedstill.experiment.stage import Stage, device_of


@dataclass(frozen=True)
class Setting:
    """Everything the parties share; client k is the k-th site by name."""

    run: str
    experiment: Mapping[str, Any]
    sites: tuple[str, ...]
    sizes: tuple[int, ...]
    tests: tuple[int, ...]
    class_names: tuple[str, ...]
    kind: Mapping[str, Any]
    """Of the samples as they are brought, before images are fitted to the model."""
    dtype: str
    lowest: float
    specs: tuple[str, ...]
    """The model of every client, and last the server's."""
    run_id: str = ""
    """What tells this run from another of the same name; nobody can guess it."""
    counted: tuple[int, ...] = ()
    """The sample counts that sites are weighed by, where they are not `sizes`."""

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
        return cls(**with_tuples(text))

    @property
    def brought(self) -> Kind:
        """The kind of the samples as they are brought."""
        return kind_of(self.kind)

    def sample(self) -> Dataset:
        """One empty sample (a black image) of the kind that all sites bring."""
        samples = Samples(self.brought.blank(1), torch.zeros(1, dtype=torch.int64), self.brought)
        return Dataset("sites", samples, None, len(self.class_names), self.class_names)

    def fitted(self, samples: Samples) -> Samples:
        """Images in the size that the models take."""
        return fit(samples, pixels_of(self.specs), 0 if self.dtype == "uint8" else self.lowest)

    def env(self, storage: Storage, device: str, public: Dataset | None = None) -> Env:
        """What methods see, the same at every party."""
        kind = self.fitted(self.sample().train).kind
        known = None if public is None else fitted(public, pixels_of(self.specs))
        return Env(
            seed=self.plan.seed,
            sizes=self.counted or self.sizes,
            classes=len(self.class_names),
            kind=kind,
            build=builder(self.specs, kind, len(self.class_names)),
            public=None if known is None else known.train,
            public_classes=None if known is None or known.class_names == self.class_names else known.classes,
            device=device_of(device),
            storage=storage,
        )

    def stage(self, storage: Storage, public: Dataset | None = None) -> Stage:
        """The hub's stage: no data, only what is known of them."""
        env = self.env(storage, self.plan.device, public)
        nothing = self.fitted(self.sample().train)[:0]
        nobody = Portions.of(())
        exam = Exam(nothing, nobody, None, env.classes, env.device)
        counts = np.zeros((len(self.sites), env.classes), np.int64)

        def absent(client: int) -> Party:
            raise UsageError(f"client {client} is site {self.sites[client]}: its data are not here")

        return Stage(env, absent, exam, nobody, counts, self.class_names, (), None, self.signature())

    def signature(self) -> Signature:
        """What using the run's models will need; how bright the brightest image is nobody said."""
        known = Signature.describe(self.sample(), self.specs, self.sizes)
        return replace(known, dtype=self.dtype, low=self.lowest, high=255.0 if self.dtype == "uint8" else 1.0)


def with_tuples(text: str) -> dict[str, Any]:
    """A JSON object whose lists are read as tuples."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in json.loads(text).items()}
