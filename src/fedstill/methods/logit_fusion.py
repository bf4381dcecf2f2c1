"""FedDF without weights, as FedTKD compares with it: every client distils the mean of all clients' public logits."""

from dataclasses import dataclass

from fedstill.core.method import Env
from fedstill.core.value import setting
from fedstill.methods.logits import LogitExchange
from fedstill.parts.learner import Learner
from fedstill.parts.losses import kl
from fedstill.parts.public_logits import Wisdom


@dataclass(frozen=True)
class LogitFusion(LogitExchange):
    """The logit form: each client brings its model to the mean public logits, then trains on its own samples."""

    temperature: float = setting(1.0, gt=0, doc="t of the distillation")

    def study(self, env: Env, learner: Learner, turns: int, down: Wisdom) -> None:
        """KL(global logits ‖ own) over the public samples, whose labels are not looked at."""
        if down.logits is not None and down.index is not None:
            taught = down.logits.to(env.device)
            for logits, _, at in self.lessons(env, learner, down.index):
                learner.step(free=kl(taught[at], logits, self.temperature))
