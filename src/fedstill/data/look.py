"""Looking at data before anything runs: what they hold, who has them, and what is amiss."""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedstill.data.kinds import Series, Table, Tokens
from fedstill.data.samples import Dataset
from fedstill.data.separated import NUMBER
from fedstill.data.tables import IDENTIFIER, SEVERAL


@dataclass(frozen=True)
class Look:
    """What there is to see: lines of facts, a row for each column or channel, and a row for each site."""

    facts: dict[str, str]
    columns: list[dict[str, Any]]
    sites: list[dict[str, Any]]
    warnings: list[str]


def look(dataset: Dataset) -> Look:
    """A look at a data set."""
    counts = dataset.train.counts(dataset.classes).tolist()
    classes = ", ".join(f"{name} {count:,}" for name, count in zip(dataset.class_names, counts, strict=True))
    facts = {
        "data": f"{dataset.name} ({dataset.source})",
        "kind": dataset.kind.words(),
        "train": f"{len(dataset.train):,} {dataset.kind.plural}",
        "test": "none" if dataset.test is None else f"{len(dataset.test):,} {dataset.kind.plural}",
        "classes": classes,
    }
    for number, note in enumerate(dataset.notes, 1):
        facts[f"read {number}"] = note
    return Look(facts, _columns(dataset), _sites(dataset), _warnings(dataset, counts))


def _columns(dataset: Dataset) -> list[dict[str, Any]]:
    x, kind = dataset.train.x, dataset.kind
    if isinstance(kind, Series):
        names = kind.names or tuple(f"channel {i}" for i in range(kind.shape[0]))
        return [
            {"column": name, "holds": "numbers", "missing": 0.0, "values": f"{mean:.4g} ± {std:.3g}"}
            for name, mean, std in zip(names, kind.mean, kind.std, strict=True)
        ]
    if not isinstance(kind, Table):
        return []
    missing = x.isnan().double().mean(0).tolist()
    rows = []
    for place, name in enumerate(kind.numeric):
        there = x[:, place][~x[:, place].isnan()]
        span = f"{float(there.min()):.6g} … {float(there.max()):.6g}, mean {kind.mean[place]:.6g}" if len(there) else ""
        rows.append({"column": name, "holds": "numbers", "missing": missing[place], "values": span})
    for place, (name, known) in enumerate(zip(kind.categorical, kind.categories, strict=True), len(kind.numeric)):
        shown = ", ".join(known[:5]) + (f" … ({len(known)})" if len(known) > 5 else "")
        rows.append({"column": name, "holds": "categories", "missing": missing[place], "values": shown})
    return rows


def _sites(dataset: Dataset) -> list[dict[str, Any]]:
    if dataset.sites is None:
        return []
    labels = dataset.train.y.numpy()
    rows = []
    for number, name in enumerate(dataset.sites.names):
        own = labels[dataset.sites.train == number]
        mix = np.bincount(own, minlength=dataset.classes)
        tests = 0 if dataset.sites.test is None else int((dataset.sites.test == number).sum())
        rows.append({"site": name, "train": len(own), "test": tests, "classes": mix.tolist()})
    return rows


def _warnings(dataset: Dataset, counts: list[int]) -> list[str]:
    lines = [f"class {n!r} has no training samples" for n, c in zip(dataset.class_names, counts, strict=True) if not c]
    largest = max(counts) / max(1, sum(counts))
    if largest > 0.8:
        name = dataset.class_names[int(np.argmax(counts))]
        lines.append(f"{largest:.0%} are {name!r}: accuracy says little; ask for metric = balanced-accuracy or auroc")
    for site in _sites(dataset):
        if 0 < site["train"] < 10:
            lines.append(f"site {site['site']} has {site['train']} training samples")
        elif sum(count > 0 for count in site["classes"]) == 1:
            lines.append(f"site {site['site']} has one class only")
    kind, x = dataset.kind, dataset.train.x
    lines += doubts(dataset)
    if isinstance(kind, Table):
        for place, name in enumerate(kind.numeric):
            there = x[:, place][~x[:, place].isnan()]
            if len(there) and bool((there == there[0]).all()):
                lines.append(f"column {name!r} is constant")
    if isinstance(kind, Tokens):
        empty = int((x == 0).all(1).sum())
        full = float((x[:, -1] != 0).double().mean())
        lines += [f"{empty} texts are empty"] if empty else []
        lines += [f"{full:.0%} of the texts are longer than {kind.length} tokens: cut"] if full > 0.2 else []
    if isinstance(kind, Series) and bool(torch.isnan(x).any()):
        lines.append("series with missing values")
    return lines


def doubts(dataset: Dataset) -> list[str]:
    """What may be wrong with the columns or with how they were read: a run tells it too."""
    lines, kind = list(dataset.doubts), dataset.kind
    if not isinstance(kind, Table):
        return lines
    lines += _suspects(kind, dataset)
    for name, known in zip(kind.categorical, kind.categories, strict=True):
        odd = [text for text in known if re.match(NUMBER, text) is None]
        if odd and len(odd) * 5 <= len(known):
            lines.append(
                f"column {name!r} holds categories: {len(known) - len(odd)} of its {len(known)} texts are numbers, "
                f"{odd[0]!r} is not"
            )
    return lines


def _suspects(kind: Table, dataset: Dataset) -> list[str]:
    """Columns that should perhaps not be learnt from: identifiers, and what tells the class by itself."""
    lines = [
        f"column {name!r} looks like an identifier, and is read as a number: ignore it, or make it the site"
        for name in kind.numeric
        if IDENTIFIER.search(name)
    ]
    labels = dataset.train.y.numpy()
    for place, name in enumerate(kind.columns):
        column = dataset.train.x[:, place].numpy()
        if len(np.unique(column[:1000])) > SEVERAL:
            continue
        values, codes = np.unique(column, return_inverse=True)
        if len(values) <= SEVERAL and len(np.unique(codes * dataset.classes + labels)) == len(values) > 1:
            lines.append(f"column {name!r} tells the class exactly: if it is the label again, ignore it")
    return lines
