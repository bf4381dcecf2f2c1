"""What the parties of a logit method say and keep: logits on public samples up, wisdom down, models stay."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from fedstill.core.classifier import Classifier
from fedstill.core.record import Carries, State, carries, record
from fedstill.parts.learner import Memory


@record
class PublicLogits:
    """What leaves a client: its logits on public samples, and which samples these are (FedTKD, 25)."""

    logits: Tensor = carries(Carries.LOGITS)
    index: Tensor = carries(Carries.ROWS)


@record
class Private:
    """What stays on a client: its model, a second head for public classes, its optimiser's state, turns it had."""

    weights: State
    head: State
    memory: Memory
    turns: int


@record
class Wisdom:
    """What goes down: global logits, the public samples they are of, class weights; None while there are none."""

    logits: Tensor | None
    index: Tensor | None
    weights: Tensor | None


@record
class Exchange:
    """The server's state: what it sends next, what the gather keeps, and what is to be told of the last round."""

    wisdom: Wisdom
    memory: Any
    round: int
    accuracy: Mapping[int, float]
    seconds: Mapping[str, float]


class Voice(nn.Module):
    """A client's model on the public set: its own logits, or those of a second head where the classes are others."""

    def __init__(self, own: Classifier, classes: int | None) -> None:
        super().__init__()
        self.own = own
        self.head = nn.Sequential() if classes is None else nn.Sequential(nn.Linear(own.width, classes))

    def forward(self, x: Tensor) -> Tensor:
        """Logits over the public set's classes."""
        return self.head(self.own.features(x)) if len(self.head) else self.own(x)  # type: ignore[no-any-return]
