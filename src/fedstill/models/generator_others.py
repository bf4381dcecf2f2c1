"""Generators of series, rows, texts and plain arrays from noise: what `light` means where data are no images."""

from torch import Tensor, nn

from fedstill.data.kinds import Plain, Series, Table, Tokens
from fedstill.models.finish import finish
from fedstill.models.generator import Generator
from fedstill.models.registry import generators_by_kind


class Unfolding(nn.Module):
    """Noise to (channels, time): a quarter of the length, doubled twice by transposed convolutions of 4 (final)."""

    def __init__(self, noise: int, width: int, channels: int, length: int) -> None:
        super().__init__()
        self.small, self.length = (width, -(-length // 4)), length
        self.linear = nn.Linear(noise, self.small[0] * self.small[1])
        self.body = nn.Sequential(
            nn.BatchNorm1d(width),
            nn.ConvTranspose1d(width, width, 4, stride=2, padding=1),
            nn.BatchNorm1d(width, eps=0.8),
            nn.LeakyReLU(0.2, inplace=True),
            nn.ConvTranspose1d(width, channels, 4, stride=2, padding=1),
        )

    def forward(self, z: Tensor) -> Tensor:
        """The series of the noise z, cut to their length."""
        whole: Tensor = self.body(self.linear(z).view(-1, *self.small))
        return whole[..., : self.length]


@generators_by_kind.register("series")
class SeriesGenerator(Generator):
    """Series by 1-D transposed convolutions."""

    channels = 32
    lr = 0.005

    def __init__(self, kind: Series, noise: int, channels: int | None = None) -> None:
        super().__init__(noise, channels)
        self.body = Unfolding(noise, self.wide, *kind.shape)
        self.finish = finish(kind)

    def forward(self, z: Tensor) -> Tensor:
        """The series of the noise z."""
        series: Tensor = self.finish(self.body(z))
        return series


@generators_by_kind.register("tokens")
class TextGenerator(Generator):
    """Texts as embeddings (length × embedding) by 1-D transposed convolutions along the text."""

    channels = 32
    lr = 0.005

    def __init__(self, kind: Tokens, noise: int, channels: int | None = None) -> None:
        super().__init__(noise, channels)
        self.body = Unfolding(noise, self.wide, kind.embedding, kind.length)
        self.finish = finish(kind)

    def forward(self, z: Tensor) -> Tensor:
        """The embedded texts of the noise z."""
        texts: Tensor = self.finish(self.body(z).transpose(1, 2))
        return texts


class Layers(Generator):
    """Two hidden layers of four times `channels` (final in its two uses)."""

    channels = 16
    lr = 0.005

    def __init__(self, kind: Table | Plain, noise: int, channels: int | None = None) -> None:
        super().__init__(noise, channels)
        hidden = 4 * self.wide
        self.shape = kind.imagined_shape
        self.body = nn.Sequential(
            nn.Linear(noise, hidden),
            nn.BatchNorm1d(hidden),
            nn.LeakyReLU(0.2),
            nn.Linear(hidden, hidden),
            nn.BatchNorm1d(hidden),
            nn.LeakyReLU(0.2),
            nn.Linear(hidden, kind.width),
        )
        self.finish = finish(kind)

    def forward(self, z: Tensor) -> Tensor:
        """The samples of the noise z."""
        samples: Tensor = self.finish(self.body(z).view(-1, *self.shape))
        return samples


@generators_by_kind.register("table")
class RowGenerator(Layers):
    """Rows: numbers, and a soft choice for every column of categories."""


@generators_by_kind.register("plain")
class ArrayGenerator(Layers):
    """Arrays of any shape."""
