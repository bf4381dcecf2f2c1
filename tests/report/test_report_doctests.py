"""The examples in the docstrings are true."""

import doctest
import importlib

import pytest

MODULES = (
    "report.command",
    "report.logging",
    "report.progress",
    "report.partition",
    "experiment.sweep",
    "experiment.metrics",
)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    result = doctest.testmod(importlib.import_module(f"fedstill.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
