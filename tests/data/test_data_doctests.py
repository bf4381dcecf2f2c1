"""The examples in the data room's docstrings are true."""

import doctest
import importlib

import pytest

MODULES = ["data.samples", "data.arrays", "data.partition", "data.sources", "report.partition"]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    result = doctest.testmod(importlib.import_module(f"fedstill.{name}"), optionflags=doctest.ELLIPSIS)
    assert result.attempted > 0
    assert result.failed == 0
