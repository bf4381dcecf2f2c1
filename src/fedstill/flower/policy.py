"""A site's own policy: what it takes part in, whatever the hub asks.

Written by the site's keeper in `policy.toml`, checked at enrolment and again before every turn and every exam. Without
a file the defaults below hold.
"""

import math
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fedstill.core.errors import UsageError
from fedstill.core.method import methods
from fedstill.core.value import plain
from fedstill.experiment.config import Experiment
from fedstill.parts.learner import LocalTraining
from fedstill.parts.privacy import PrivateSamples, open_fields
from fedstill.parts.secure_sums import SecureSums

Number = Annotated[int, Field(ge=0, le=1 << 50)]
Duration = Annotated[float, Field(gt=0, le=10**9)]


class Bound(BaseModel):
    """The least and the most that a setting of a method may be."""

    model_config = ConfigDict(frozen=True, strict=False, extra="forbid", allow_inf_nan=False)

    least: float | None = None
    most: float | None = None

    def broken_by(self, value: object) -> bool:
        """Is this value outside?"""
        if not isinstance(value, int | float):
            return True
        return (self.least is not None and value < self.least) or (self.most is not None and value > self.most)


class Policy(BaseModel):
    """What a site takes part in. Every field has a default that lets the methods' own defaults pass."""

    model_config = ConfigDict(frozen=True, strict=False, extra="forbid", allow_inf_nan=False)

    methods: tuple[str, ...] = ()
    """The only methods; none named: all."""
    settings: dict[str, Bound] = {}
    """Bounds on methods' settings by name: `[settings.lr]`, `most = 0.5`."""
    code: tuple[str, ...] = ()
    """Code outside fedstill that an experiment may name (`package.module:Name`); it must be installed here."""
    least_batch: Annotated[int, Field(ge=1)] = 8
    """A batch of one sample gives the hub that sample; nor may a small last batch let one weigh more in a turn."""
    least_steps: Annotated[int, Field(ge=1)] = 1
    least_samples: Annotated[int, Field(ge=1)] = 32
    """Samples that a turn must see, all batches together."""
    least_tests: Annotated[int, Field(ge=1)] = 10
    """Test samples below which nothing is said of an exam."""
    least_sites: Annotated[int, Field(ge=1)] = 2
    """Parties of a round, by what the hub declares, or, with secure sums, those without whom there is no sum: an
    average over one alone is that one's upload."""
    models_per_exam: Number = 16
    exams_per_round: Number = 3
    """A hub that is restarted may ask again."""
    exams_per_run: Number = 1_000
    turns_per_run: Number = 10_000
    turn_seconds: Duration = 3600.0
    run_seconds: Duration = 30 * 86400.0
    """Of turns and exams together."""
    turn_bytes: Number = 1 << 30
    """Of a download, and of an upload."""
    run_bytes: Number = 1 << 40
    memory_bytes: Number = 16 << 30
    """That the process which does the work may have, its data included (Linux, cpu); 0: any."""
    runs_per_day: Number = 100
    """New runs in a day: all that is allowed in a run is allowed again in the next."""
    epsilon: Annotated[float, Field(gt=0)] | None = None
    """The most privacy loss (ε for each sample, in a whole run) that is taken; none: no noise is asked for."""
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    epsilon_all_runs: Annotated[float, Field(gt=0)] | None = None
    """The most privacy loss over all runs that this site ever takes part in, counted in its state folder."""
    approval: bool = False
    """Must a person approve each experiment (`fedstill site approve`)?"""
    signers: tuple[Path, ...] = ()
    """Public keys of the persons who may start an experiment; none named: the hub may."""
    partners: tuple[Path, ...] = ()
    """Public keys of the other sites, each called as its site, with whom alone sums are masked; none named: with
    whomever the hub names."""

    def refuses(self, plan: Experiment) -> str | None:
        """Why a plan is against the policy; None when it is not."""
        if self.methods and plan.title not in self.methods:
            return f"this site takes part in {', '.join(self.methods)} only, not in {plan.title}"
        method = plan.method
        settings = plain(method)
        for name, bound in self.settings.items():
            if settings.get(name) is not None and bound.broken_by(settings[name]):
                return f"{name} = {settings[name]}: this site's policy asks for {_words(bound)}"
        if isinstance(method, LocalTraining) and method.batch < self.least_batch:
            return f"batch = {method.batch}: this site's policy asks for {self.least_batch} at least"
        return self._too_open(plan)

    def _too_open(self, plan: Experiment) -> str | None:
        """Why an experiment promises too little privacy for each sample; None where none is asked for, or it does."""
        most = self.most_epsilon
        if most is None:
            return None
        asked = f"this site's policy asks for ε ≤ {most:g} at δ ≤ {self.delta:g} for each sample"
        promises = [wrapper for wrapper in plan.wrappers if isinstance(wrapper, PrivateSamples)]
        if not promises:
            return f"no private-samples among the wrappers: {asked}"
        if told := open_fields(plan.method.uploads()):
            return f"{plan.title} tells of the samples without noise ({', '.join(told)}): {asked}"
        for promise in promises:
            if promise.keyed:
                return "private-samples with noise that follows from the run's seed: the hub could take it away"
            if promise.epsilon is None or promise.epsilon > most or promise.delta > self.delta:
                return f"private-samples with ε = {promise.epsilon}, δ = {promise.delta:g}: {asked}"
        return None

    @property
    def most_epsilon(self) -> float | None:
        """The most that one run may spend; None where no noise is asked for."""
        return min((most for most in (self.epsilon, self.epsilon_all_runs) if most is not None), default=None)

    def refuses_turn(self, plan: Experiment, samples: int) -> str | None:
        """Why a turn of this plan on so many training samples is against the policy; None when it is not."""
        parties = plan.active_count
        for wrapper in plan.wrappers:
            if isinstance(wrapper, SecureSums):
                parties = wrapper.needed(parties)
        if parties < self.least_sites:
            return f"rounds of {parties} sites: this site's policy asks for {self.least_sites} at least"
        method = plan.method
        if not isinstance(method, LocalTraining):
            return f"{plan.title}: it does not say how it trains, so its turns cannot be bounded"
        steps = method.steps(samples)
        if steps < self.least_steps:
            return f"{steps} steps a turn: this site's policy asks for {self.least_steps} at least"
        seen = min(samples, steps * method.batch)
        if seen < self.least_samples:
            return f"a turn on {seen} samples: this site's policy asks for {self.least_samples} at least"
        if (hidden := hidden_among(samples, method.batch, steps)) < self.least_batch:
            return (
                f"batch = {method.batch}: the last batch of {samples} samples is so small that one sample would weigh "
                f"1/{hidden} in a turn; this site's policy asks for 1/{self.least_batch} at most"
            )
        return None

    def seconds_of(self, deadline: float) -> float:
        """How long a turn or an exam may take, for which a hub waits until this deadline (0: for ever)."""
        return min(self.turn_seconds, deadline or self.turn_seconds)

    def explain(self) -> str:
        """The policy's consequences, in words."""
        named = ", ".join(self.methods) or "any method"
        bounds = "; ".join(f"{name} {_words(bound)}" for name, bound in self.settings.items())
        lines = [
            "What this site refuses, by its policy:",
            f"  experiments         other than {named}" + (f"; settings other than {bounds}" if bounds else ""),
            f"                      batches below {self.least_batch}, turns of which one sample is more than "
            f"1/{self.least_batch}, turns below {self.least_steps} steps or",
            f"                      {self.least_samples} samples, rounds of fewer than {self.least_sites} sites",
            f"  turns               longer than {self.turn_seconds:g} s or with more than {self.turn_bytes:,} bytes "
            f"either way; more than {self.turns_per_run:,} in a run",
            f"  exams               of more than {self.models_per_exam} models, more than {self.exams_per_round} in a "
            f"round or {self.exams_per_run:,} in a run; none on fewer than {self.least_tests} test samples",
            f"  runs                that took {self.run_seconds:g} s of work or {self.run_bytes:,} bytes; more than "
            f"{self.runs_per_day} new ones in a day; a task of another experiment than the one enrolled for",
        ]
        if self.memory_bytes:
            lines.append(f"  memory              more than {self.memory_bytes:,} bytes, its data included (Linux, cpu)")
        if self.most_epsilon is not None:
            lines.append(
                f"  too open            experiments without ε ≤ {self.most_epsilon:g} at δ ≤ {self.delta:g} for each "
                "sample, and those that tell of samples without noise"
            )
        if self.epsilon_all_runs is not None:
            lines.append(f"  spent               experiments that bring ε of all runs above {self.epsilon_all_runs:g}")
        if self.signers:
            lines.append(f"  unsigned            experiments without a signature of {_names(self.signers)}")
        if self.partners:
            lines.append(f"  secure sums         with other sites than {_names(self.partners)}")
        if self.approval:
            lines.append("  unapproved          experiments that no person here approved (fedstill site approve)")
        return "\n".join(lines)


def hidden_among(samples: int, batch: int, steps: int) -> int:
    """Among how many a turn hides one sample: it has at most one such part of all that the turn's batches weigh.

    A batch's samples share one step. The last batch of an epoch may be small, and who is in it has a larger share: of
    100 samples in batches of 99 the last one counts as much as the others together.

    >>> hidden_among(100, 20, steps=2), hidden_among(100, 20, steps=5), hidden_among(100, 20, steps=50)
    (40, 100, 100)
    >>> hidden_among(100, 99, steps=2), hidden_among(100, 99, steps=20)
    (2, 18)
    """
    of_epoch = math.ceil(samples / batch)
    if steps < of_epoch:
        return steps * batch
    smallest = samples - (of_epoch - 1) * batch
    most = 1 / smallest + (steps / of_epoch - 1) / batch  # who is in the small batch once is elsewhere next time
    return round(steps / most)


def read_policy(path: Path | None, only: tuple[str, ...] = ()) -> Policy:
    """The policy in a TOML file (the defaults without one); `only` names the methods instead of the file's."""
    settings = {}
    if path is not None:
        try:
            settings = tomllib.loads(path.read_text())
        except FileNotFoundError:
            raise UsageError(f"--policy {path}: no such file") from None
        except (OSError, ValueError) as error:
            raise UsageError(f"--policy {path}: {error}") from None
    if only:
        settings["methods"] = only
    try:
        policy = Policy.model_validate(settings)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        known = ", ".join(Policy.model_fields)
        more = f"; known: {known}" if first["type"] == "extra_forbidden" else f", not {first['input']!r}"
        raise UsageError(f"--policy {path}: {where}: {first['msg']}{more}") from None
    for method in policy.methods:
        methods[method]  # a misspelt name says which there are
    known_settings = {field.name for method in methods for field in fields(methods[method])}
    for name in policy.settings:
        if name not in known_settings:
            raise UsageError(f"--policy {path}: settings.{name}: no method has this setting")
    return policy


def _words(bound: Bound) -> str:
    least = [] if bound.least is None else [f"at least {bound.least:g}"]
    most = [] if bound.most is None else [f"at most {bound.most:g}"]
    return " and ".join([*least, *most]) or "anything"


def _names(paths: tuple[Path, ...]) -> str:
    return ", ".join(path.stem for path in paths)
