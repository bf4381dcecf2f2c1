"""Compression of what a client sends: fewer bits a number, or fewer numbers; what is lost is made up for later.

Both work on the difference from what came down (and on changes as they are), since differences are small. What a
message leaves out is kept on the client and added to the next one (error feedback: Seide et al., Interspeech 2014;
Karimireddy, Rebjock, Stich, Jaggi, ICML 2019), so that nothing is lost for good.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor, nn

from fedstill.core.errors import UsageError
from fedstill.core.method import Env, Reply
from fedstill.core.record import Carries, carries, fault, record
from fedstill.core.turn import AnyMethod, Beside, Turn, Wrapper, apart, wrappers
from fedstill.core.value import by_field, setting
from fedstill.parts.sums import ADDITIVE, counters, origin, parts, rebuilt, vector


@record
class Compressed:
    """What leaves a client: codes of the numbers, what is needed to read them, and the counter that goes with them."""

    codes: Tensor = carries(Carries.COMPRESSED)
    key: Tensor = carries(Carries.COMPRESSED)
    version: int = carries(Carries.VERSION)


@record
class Residual:
    """What stays on a client: the part of its last difference that was not sent."""

    left: Tensor


@dataclass(frozen=True)
class Compression(Wrapper, ABC):
    """Base of all compressions: they say how a vector is written, and read again."""

    @property
    def reads_steps(self) -> bool:
        """It writes the step."""
        return True

    @property
    @abstractmethod
    def bits(self) -> float:
        """Bits a number, keys aside."""

    @abstractmethod
    def written(self, env: Env, values: Tensor, sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Codes and key of a vector that is made of tensors of these sizes."""

    @abstractmethod
    def read(self, codes: Tensor, key: Tensor, sizes: Sequence[int]) -> Tensor:
        """The vector that codes and key stand for, in float64."""

    @abstractmethod
    def written_form(self, sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Codes and key of the right form for tensors of these sizes; their numbers do not matter."""

    def misfit(self, method: AnyMethod, upload: type) -> str | None:
        """Works on uploads of weights alone."""
        if "weights" not in {f.name for f in fields(method.downloads())}:
            return "works on the difference from the weights that came down; this method sends none down"
        for f in fields(upload):
            if f.metadata["carries"] not in (*ADDITIVE, Carries.VERSION):
                return f"compresses weights; clients also send {f.metadata['carries']}"
        return None

    def unfit(self, module: nn.Module) -> str | None:
        """Counters are no part of a vector."""
        return counters(module)

    def uploads(self, upload: type) -> type:
        """Codes and their key."""
        return Compressed

    def effects(self, upload: type) -> Mapping[str, str]:
        """How many bits a number is left with."""
        return {"codes": f"{self.bits:.3g} bits a weight", "key": "how to read the codes"}

    def around(self, method: AnyMethod, turn: Turn) -> Turn:
        """The turn, its upload compressed; what that leaves out is kept for the next time."""

        def compressed(env: Env, state: Any, down: Any, data: Any) -> tuple[Any, Any]:
            own, inner = apart(state)
            inner, upload = turn(env, inner, down, data)
            sizes = [part.like.numel() for part in parts(upload)]
            wanted = vector(upload) - origin(upload, down)
            if own is not None:
                wanted = wanted + own.left.double()
            codes, key = self.written(env, wanted, sizes)
            left = wanted - self.read(codes, key, sizes)
            version = next((by_field(upload)[f.name] for f in fields(upload) if _is_version(f)), 0)
            return Beside(Residual(left.float()), inner), Compressed(codes, key, version)

        return compressed

    def received(self, env: Env, replies: Sequence[Reply[Any]]) -> list[Reply[Any]]:
        """Every reply with the upload that its codes stand for; one that cannot be read is refused."""
        return [reply if reply.error else self._whole(reply) for reply in replies]

    def _whole(self, reply: Reply[Any]) -> Reply[Any]:
        message, form = reply.upload, reply.form
        sizes = [part.like.numel() for part in parts(form)]
        blank = self.written_form(sizes)
        if wrong := fault(message, Compressed(*blank, 0)):
            return replace(reply, upload=None, error=f"refused: {wrong}")
        if message.key.dtype == torch.int32 and not bool(((message.key >= 0) & (message.key < sum(sizes))).all()):
            return replace(reply, upload=None, error="refused: key has places that are not there")
        names = [f.name for f in fields(form) if _is_version(f)]
        numbered = replace(form, **dict.fromkeys(names, message.version))
        values = origin(form, reply.down) + self.read(message.codes, message.key, sizes)
        return replace(reply, upload=rebuilt(numbered, values))


def _is_version(f: Any) -> bool:
    return f.metadata["carries"] is Carries.VERSION


@wrappers.register("quantise")
@dataclass(frozen=True)
class Quantise(Compression):
    """Each number in 2, 4 or 8 bits, between plus and minus the largest of its tensor, rounded at random to be fair."""

    width: int = setting(8, doc="bits a number: 2, 4 or 8")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width not in (2, 4, 8):
            raise UsageError(f"width = {self.width}: must be one of 2, 4, 8")

    @property
    def bits(self) -> float:
        """As set."""
        return self.width

    def written(self, env: Env, values: Tensor, sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Codes from 0 to 2^b − 1, several in a byte; the key is each tensor's largest number."""
        key = torch.stack([piece.abs().max() for piece in torch.split(values, list(sizes))]).float()
        most = 2**self.width - 1
        exact = (values / _spread(key, sizes) + 1) / 2 * most
        dice = torch.rand(len(values), generator=env.stream("quantise"), dtype=torch.float64)
        codes = (exact + dice).floor().clamp(0, most).to(torch.uint8)
        return _packed(codes, self.width), key

    def written_form(self, sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Bytes, and a number for each tensor."""
        return torch.zeros(-(-sum(sizes) * self.width // 8), dtype=torch.uint8), torch.zeros(len(sizes))

    def read(self, codes: Tensor, key: Tensor, sizes: Sequence[int]) -> Tensor:
        """The numbers that the codes stand for."""
        most = 2**self.width - 1
        whole = _unpacked(codes, self.width)[: sum(sizes)].double()
        values: Tensor = (whole / most * 2 - 1) * _spread(key, sizes)
        return values


def _spread(key: Tensor, sizes: Sequence[int]) -> Tensor:
    return key.double().clamp(min=1e-30).repeat_interleave(torch.tensor(list(sizes)))


def _packed(codes: Tensor, width: int) -> Tensor:
    """Codes of `width` bits, 8/width of them in a byte.

    >>> _packed(torch.tensor([1, 2, 3], dtype=torch.uint8), 4).tolist()
    [33, 3]
    """
    each = 8 // width
    rows = nn.functional.pad(codes, (0, -len(codes) % each)).view(-1, each).long()
    return (rows << (width * torch.arange(each))).sum(1).to(torch.uint8)


def _unpacked(packed: Tensor, width: int) -> Tensor:
    shifts = width * torch.arange(8 // width)
    codes: Tensor = packed.long().unsqueeze(1) >> shifts & (2**width - 1)
    return codes.flatten()


@wrappers.register("top-k")
@dataclass(frozen=True)
class TopK(Compression):
    """Only the largest numbers are sent, with their places."""

    share: float = setting(0.1, gt=0, le=1, doc="share of the numbers that are sent")

    @property
    def bits(self) -> float:
        """A number and a place of 32 bits each, for every number sent."""
        return 64 * self.share

    def written(self, env: Env, values: Tensor, sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The numbers; the key is their places."""
        places = values.abs().topk(self.count(sizes)).indices.sort().values
        return values[places].float(), places.to(torch.int32)

    def count(self, sizes: Sequence[int]) -> int:
        """How many numbers are sent."""
        return max(1, round(self.share * sum(sizes)))

    def written_form(self, sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
        """As many numbers as places."""
        return torch.zeros(self.count(sizes)), torch.zeros(self.count(sizes), dtype=torch.int32)

    def read(self, codes: Tensor, key: Tensor, sizes: Sequence[int]) -> Tensor:
        """Zero wherever no number was sent."""
        return torch.zeros(sum(sizes), dtype=torch.float64).index_put((key.long(),), codes.double())
