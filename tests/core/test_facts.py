"""Facts that follow from what a method tells and from what only an experimenter knows."""

from typing import Any

import numpy as np

import fedstill.methods.dafkd.domain
import fedstill.parts.identification  # noqa: F401
from fedstill.core.facts import Truth, derive


def test_who_tells_whom_it_trusted_is_measured_against_who_was_malicious() -> None:
    """Shut out: 0 and 2; malicious among those that answered: 0. One hit of two, and of one."""
    row: dict[str, Any] = {"facts": {"trusted": [1, 3], "answered": [0, 1, 2, 3]}}
    derive(row, Truth(malicious=(0, 9)))
    assert row["identification"] == {"trusted": [1, 3], "precision": 0.5, "recall": 1.0}


def test_nothing_follows_where_nobody_is_malicious_or_the_data_are_elsewhere() -> None:
    facts = {"trusted": [1], "answered": [1], "domain_weights": {"0": [0.5, 0.5]}, "made": [1, 1]}
    row: dict[str, Any] = {"facts": dict(facts)}
    derive(row, Truth())
    assert row == {"facts": facts}


def test_what_follows_for_the_facts_stands_among_them() -> None:
    """α̂ = the label shares exactly: their correlation is 1."""
    row: dict[str, Any] = {"facts": {"domain_weights": {"0": [0.9, 0.1], "1": [0.2, 0.8]}, "made": [5, 5]}}
    derive(row, Truth(counts=np.array([[9, 1], [2, 8]])))
    assert round(row["facts"]["domain_correlation"], 6) == 1
