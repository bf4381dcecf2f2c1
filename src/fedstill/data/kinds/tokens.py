"""Tokens: texts as numbers of words, 0 for the empty places behind a short text."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedstill.core.kind import Kind, kinds
from fedstill.core.value import setting


@kinds.register("tokens")
@dataclass(frozen=True)
class Tokens(Kind):
    """Texts of at most `length` tokens, each a number below `vocabulary`; models turn a token into `embedding` numbers.

    A generator makes no tokens but such embeddings: texts have no gradient.
    """

    plural = "texts"
    length: int = setting(64, ge=1, doc="tokens of a text that are read")
    vocabulary: int = setting(4096, ge=2, doc="tokens that are told apart; 0 is none")
    embedding: int = setting(32, ge=1, doc="numbers that a model has for a token")
    tokenizer: str = setting("hash", doc="hash, or the path of a `tokenizers` file")
    shape: tuple[int, ...] = field(init=False, default=(0,))

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", (self.length,))
        super().__post_init__()

    @property
    def imagined_shape(self) -> tuple[int, ...]:
        """Length × embedding."""
        return self.length, self.embedding

    def fault(self, x: Tensor) -> str | None:
        """N×length of int32, each below the vocabulary."""
        if x.ndim != 2 or x.dtype != torch.int32 or tuple(x.shape[1:]) != self.shape:
            return f"x is {x.dtype} {tuple(x.shape)}: must be N×{self.length}, int32"
        if len(x) and not (int(x.min()) >= 0 and int(x.max()) < self.vocabulary):
            return f"tokens from {int(x.min())} to {int(x.max())}: must be ≥ 0 and < {self.vocabulary}"
        return None

    def blank(self, count: int) -> Tensor:
        """Empty texts."""
        return torch.zeros(count, self.length, dtype=torch.int32)

    def inputs(self, x: Tensor) -> Tensor:
        """The numbers of the tokens, int64."""
        return x.long()

    def spoilt(self, x: Tensor, chosen: Tensor, std: float, stream: torch.Generator) -> Tensor:
        """Every token becomes another, drawn at random, with probability `std`; empty places stay empty."""
        changed = (torch.rand(chosen.shape, generator=stream) < std) & (chosen > 0)
        other = torch.randint(1, self.vocabulary, chosen.shape, generator=stream).to(x.dtype)
        return torch.where(changed, other, chosen)

    def noise(self, count: int, stream: torch.Generator) -> Tensor:
        """Texts of tokens drawn at random."""
        return torch.randint(1, self.vocabulary, (count, self.length), generator=stream)

    def shown(self, inputs: Tensor) -> Tensor:
        """As they are: numbers of tokens, or embeddings."""
        return inputs

    def words(self) -> str:
        """Length and vocabulary."""
        return f"texts of {self.length} tokens out of {self.vocabulary:,}"
