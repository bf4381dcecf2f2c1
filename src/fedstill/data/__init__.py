"""Samples, where they come from, and how they are divided over clients."""

from fedstill.data.natural import BySite, Given, Saved
from fedstill.data.partition import (
    IID,
    Dirichlet,
    Dominant,
    EqualSize,
    Partition,
    Quantity,
    Rebalanced,
    Shards,
    Split,
    local_split,
    matching_test,
    partitions,
    public_split,
)
from fedstill.data.reading import Reading
from fedstill.data.samples import Dataset, Samples, batches
from fedstill.data.sources import datasets, found, load, load_clients, pool

__all__ = [
    "IID",
    "BySite",
    "Dataset",
    "Dirichlet",
    "Dominant",
    "EqualSize",
    "Given",
    "Partition",
    "Quantity",
    "Reading",
    "Rebalanced",
    "Samples",
    "Saved",
    "Shards",
    "Split",
    "batches",
    "datasets",
    "found",
    "load",
    "load_clients",
    "local_split",
    "matching_test",
    "partitions",
    "pool",
    "public_split",
]
