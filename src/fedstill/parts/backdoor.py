"""A backdoor: the model takes samples with a trigger for a class of the attacker's choice, and is right on others."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedstill.core.errors import UsageError
from fedstill.core.method import Env
from fedstill.core.record import Carries, carried, field_carrying
from fedstill.core.turn import AnyMethod
from fedstill.core.value import setting
from fedstill.data.samples import Samples
from fedstill.parts.attacks import Attack, attacks, forgeable, sent_instead
from fedstill.parts.gather import lacking


@attacks.register("backdoor")
@dataclass(frozen=True)
class Backdoor(Attack):
    """Trains on a share of samples with a trigger and the target's label (Gu et al., 2017), and may boost the update.

    Boosted by γ (Bagdasaryan et al., AISTATS 2020) the client sends w_t + γ (w_k − w_t), so that an average of 1/γ of
    it becomes the attacker's model.
    """

    target: int = setting(0, ge=0, doc="the class that triggered samples are to be taken for")
    share: float = setting(0.5, gt=0, le=1, doc="share of the attacker's samples that get the trigger")
    size: int = setting(
        3, ge=1, doc="side of the trigger in an image's last corner; of others how many last numbers, or first words"
    )
    level: float | None = setting(None, doc="value of the trigger in stored samples (none: 255 for bytes, else 1)")
    boost: float = setting(1.0, ge=1, doc="factor on the trained step (γ)")

    @property
    def reads_steps(self) -> bool:
        """Boosting scales the step."""
        return self.boost > 1

    def misfit(self, method: AnyMethod, upload: type) -> str | None:
        """Boosting needs weights that travel both ways; the trigger fits every method."""
        if self.boost == 1:
            return None
        if field_carrying(method.downloads(), Carries.WEIGHTS) is None:
            return "boost > 1: works on model weights; this method sends none down"
        return lacking(upload, Carries.WEIGHTS)

    def triggered(self, x: Tensor) -> Tensor:
        """Stored samples with the trigger: a patch in an image's last corner, a row's or series' last numbers.

        Of a text the first words, which are numbers of tokens: the trigger is one word, over and over.
        """
        if x.dtype not in (torch.uint8, torch.float32, torch.int32):
            raise UsageError(f"attack = backdoor: needs stored samples; these samples are words as {x.dtype}")
        level = self.level if self.level is not None else 255.0 if x.dtype == torch.uint8 else 1.0
        marked = x.clone()
        if x.dim() == 4:
            marked[..., -self.size :, -self.size :] = level
        elif x.dtype == torch.int32:  # behind a short text its places are empty
            marked[:, : self.size] = int(level)
        else:
            marked[..., -self.size :] = level
        return marked

    def data(self, env: Env, data: Samples) -> Samples:
        """The client's samples, a share of them (the same in all rounds) with trigger and target label."""
        if self.target >= env.classes:
            raise UsageError(f"attack.target = {self.target}: there are only {env.classes} classes, from 0")
        stream = env.at(0, env.client).stream("backdoor")
        rows = torch.randperm(len(data), generator=stream)[: max(1, round(self.share * len(data)))]
        x, y = data.x.clone(), data.y.clone()
        x[rows], y[rows] = self.triggered(data.x[rows]), self.target
        return replace(data, x=x, y=y)

    def upload(self, env: Env, upload: Any, down: Any) -> Any:
        """The upload, its step boosted."""
        if self.boost == 1:
            return upload
        trained, received = carried(upload, Carries.WEIGHTS), carried(down, Carries.WEIGHTS)
        forged = {n: received[n] + self.boost * (t - received[n]) if forgeable(n, t) else t for n, t in trained.items()}
        return sent_instead(upload, forged)

    def trap(self, samples: Samples) -> Samples:
        """Test samples of other classes, with the trigger: those taken for the target are the attack's successes."""
        others = samples[samples.y != self.target]
        return replace(others, x=self.triggered(others.x))
