"""What must be known of each party's own data before they train together: form, size, classes, normalisation."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedstill.core.errors import DataError
from fedstill.data import arrays
from fedstill.data.samples import Samples


@dataclass(frozen=True)
class Summary:
    """A party's training images in a few numbers; mean and std have one entry a channel."""

    size: int
    shape: tuple[int, int, int]
    dtype: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    """The normalisation its data came with."""
    measured_mean: tuple[float, ...]
    measured_std: tuple[float, ...]
    """Those of its own images; 0 where a channel is constant."""
    lowest: float
    class_names: tuple[str, ...]


def summary(samples: Samples, class_names: tuple[str, ...]) -> Summary:
    """The summary of a party's samples."""
    mean, std = arrays.measure(samples.x.numpy())
    flat = (samples.x.amin((0, 2, 3)) == samples.x.amax((0, 2, 3))).tolist()  # `measure` gives these deviation 1
    return Summary(
        len(samples), samples.shape, str(samples.x.dtype).removeprefix("torch."), samples.mean, samples.std,
        tuple(mean), tuple(0.0 if constant else s for constant, s in zip(flat, std, strict=True)),
        float(samples.x.min()), class_names,
    )  # fmt: skip


def pooled(parties: Sequence[Summary]) -> arrays.Norm:
    """The normalisation all parties share already, else mean and deviation over all their samples."""
    if len({(party.mean, party.std) for party in parties}) == 1:
        return parties[0].mean, parties[0].std
    sizes = np.array([party.size for party in parties], float)
    means = np.array([party.measured_mean for party in parties])
    stds = np.array([party.measured_std for party in parties])
    share = (sizes / sizes.sum())[:, None]
    mean = (share * means).sum(axis=0)
    std = np.sqrt((share * (stds**2 + (means - mean) ** 2)).sum(axis=0))
    return tuple(map(float, mean)), tuple(float(s) if s > 0 else 1.0 for s in std)


def common_classes(parties: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """One list of classes for parties that know different ones: numbers up to the highest, or all names sorted.

    >>> common_classes([("0", "1"), ("0", "1", "2")]), common_classes([("cat", "dog"), ("ant", "dog")])
    (('0', '1', '2'), ('ant', 'cat', 'dog'))
    """
    names = {name for party in parties for name in party}
    if all(name.isdecimal() for name in names):
        return tuple(map(str, range(max(map(int, names)) + 1)))
    return tuple(sorted(names))


def agreed(parties: Sequence[Summary], titles: Sequence[str]) -> None:
    """Refuse parties whose images differ in form, naming the first that does."""
    for party, title in zip(parties, titles, strict=True):
        if (party.shape, party.dtype) != (parties[0].shape, parties[0].dtype):
            form, first = (f"{p.dtype} {'×'.join(map(str, p.shape))}" for p in (party, parties[0]))
            raise DataError(f"{title}: images are {form}, those of {titles[0]} {first}; they must agree")
