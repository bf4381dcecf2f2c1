"""Attacks of clients that know of each other: what they send is made from several clients' honest updates.

Such an attack is no affair of one client's turn. Malicious clients take honest turns, and what they send is replaced
when the round's replies are in, before the server sees them (`conspire`). That is how the literature means it: the
attackers know the honest updates of the round (`sees = "all"`), or only those that they would have sent themselves.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, Literal

import torch
from torch import Tensor

from fedstill.core.method import Env, Reply
from fedstill.core.record import Carries, State, carried
from fedstill.core.turn import AnyMethod
from fedstill.core.value import setting
from fedstill.parts.architectures import same_form
from fedstill.parts.attacks import Attack, attacks, forgeable, no_weights, sent_instead
from fedstill.parts.gather import weights_in


@dataclass(frozen=True)
class Collusion(Attack, ABC):
    """Base of the attacks that are made together, on uploaded weights."""

    sees: Literal["all", "attackers"] = setting(
        "all", doc="whose honest updates the attackers know: everybody's of the round, or only their own"
    )

    @property
    def reads_steps(self) -> bool:
        """They forge the step."""
        return True

    def misfit(self, method: AnyMethod, upload: type) -> str | None:
        """Needs weights that travel both ways."""
        return no_weights(method, upload)

    def conspire(
        self, env: Env, downs: Mapping[int, Any], replies: Sequence[Reply[Any]], malicious: Collection[int]
    ) -> list[Reply[Any]]:
        """The round's replies, those of malicious clients forged.

        `downs`: what each client was sent; `replies`: everybody's honest replies; `malicious`: who attacks. Counters
        and BatchNorm's variances stay as trained: no weights of a working network look like that.
        """
        answered = [r for r in replies if r.error is None]
        first = next((r for r in answered if r.client in malicious), None)
        if first is None:
            return list(replies)
        alike = [r for r in answered if same_form(weights_in(r), weights_in(first))]  # where networks differ
        bad = [r for r in alike if r.client in malicious]
        known = bad if self.sees == "attackers" else [r for r in alike if r.client not in malicious]
        if not known:
            return list(replies)
        received: State = carried(downs[first.client], Carries.WEIGHTS)
        steps = {
            name: torch.stack([weights_in(r)[name] for r in known]).double() - received[name].double()
            for name, like in weights_in(first).items()
            if forgeable(name, like)
        }
        forged = {
            name: (received[name].double() + self.step(known_steps, len(answered), len(bad))).to(received[name].dtype)
            for name, known_steps in steps.items()
        }
        instead = {r.client: replace(r, upload=sent_instead(r.upload, {**weights_in(r), **forged})) for r in bad}
        return [instead.get(r.client, r) for r in replies]

    @abstractmethod
    def step(self, steps: Tensor, count: int, bad: int) -> Tensor:
        """The step they all send, from the known clients' steps (clients × …), of `count` replies `bad` forged."""


@attacks.register("alie")
@dataclass(frozen=True)
class ALittleIsEnough(Collusion):
    """A little is enough (Baruch, Baruch, Goldberg, NeurIPS 2019): the mean step less z standard deviations.

    z is the largest at which enough honest clients are farther out: Φ(z) = (n − m − s)/(n − m), s = ⌊n/2 + 1⌋ − m, of n
    replies m forged.
    """

    z: float | None = setting(None, doc="standard deviations from the mean (none: from the numbers of clients)")

    def step(self, steps: Tensor, count: int, bad: int) -> Tensor:
        """μ − z σ in every weight; of one client σ is 0."""
        z = self.reach(count, bad) if self.z is None else self.z
        return steps.mean(0) - z * steps.std(0, unbiased=False)

    def reach(self, count: int, bad: int) -> float:
        """z of the paper; 0 where nobody honest is left to hide behind."""
        share = (count - bad - (count // 2 + 1 - bad)) / max(count - bad, 1)
        return max(NormalDist().inv_cdf(share), 0.0) if 0 < share < 1 else 0.0


@attacks.register("inner-product")
@dataclass(frozen=True)
class InnerProduct(Collusion):
    """Inner-product manipulation (Xie, Koyejo, Gupta, UAI 2019): minus ε times the mean step."""

    epsilon: float = setting(2.0, gt=0, doc="length of the step back, relative to the mean step (ε)")

    def step(self, steps: Tensor, count: int, bad: int) -> Tensor:
        """−ε μ."""
        return -self.epsilon * steps.mean(0)


@attacks.register("mimic")
@dataclass(frozen=True)
class Mimic(Collusion):
    """Mimic (Karimireddy, He, Jaggi, ICLR 2022): all send what one honest client sends, who then counts more."""

    def step(self, steps: Tensor, count: int, bad: int) -> Tensor:
        """The step of the first client they know of."""
        return steps[0]
