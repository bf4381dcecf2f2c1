"""Settings that follow from others: what the columns are, and that every site of the data is a client."""

from typing import Any, Protocol, runtime_checkable

from fedstill.core.errors import UsageError
from fedstill.core.value import build_named, plain
from fedstill.data.natural import BySite, Natural
from fedstill.data.partition import Partition
from fedstill.data.reading import SHORT, Reading
from fedstill.data.sources import load, may_have_sites

FEW_SITES = 10
"""So many sites or fewer all take part in every round, unless `active` says otherwise."""


def with_reading(known: dict[str, Any]) -> dict[str, Any]:
    """The settings with `label`, `site` … put where they belong."""
    columns = {name: known.pop(name) for name in SHORT if name in known}
    if columns:
        before = known.get("reading") or {}
        known["reading"] = {
            **(plain(before) if isinstance(before, Reading) else {"name": "columns", **before}),
            **columns,
        }
    return known


def with_sites(known: dict[str, Any], usual: Any) -> dict[str, Any]:
    """The settings with one client for each site, where the data have sites and no other partition is asked for.

    `usual` are the data where the settings name none.
    """
    partition = known.get("partition")
    natural = build_named(Partition, partition) if partition is not None and "alpha" not in known else None  # type: ignore[type-abstract]
    if isinstance(natural, Natural):
        if "clients" in known:
            return known
    elif partition is not None or "alpha" in known or not may_have_sites(known.get("data"), known.get("reading")):
        return known
    reading = known.get("reading")
    dataset = load(known.get("data", usual), None if reading is None else build_named(Reading, reading))
    if natural is None and dataset.sites is None:
        return known
    natural = natural or BySite()
    count = natural.clients(dataset)
    if "clients" in known and int(known["clients"]) != count:
        raise UsageError(
            f"clients = {known['clients']}: the data have {count} sites; leave clients out, or name a partition"
        )
    if not isinstance(known.get("data", usual), str):
        known["data"] = dataset  # what was given as an object is read once
    everyone = {"active": 1.0} if count is not None and count <= FEW_SITES else {}
    return {**everyone, **known, "partition": natural, "clients": count}


@runtime_checkable
class _Array(Protocol):
    """Of numpy, torch or another library."""

    shape: Any


def are_arrays(data: Any) -> bool:
    """Is this (x_train, y_train, x_test, y_test) rather than one entry for each client?"""
    return len(data) in (2, 4) and all(isinstance(part, _Array) for part in data)
