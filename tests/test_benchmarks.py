"""Benchmarks are not run by the tests; what they import must be there all the same."""

import ast
import importlib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.mark.parametrize("path", sorted(BENCHMARKS.rglob("*.py")), ids=lambda path: path.name)
def test_what_a_benchmark_imports_of_fedstill_is_there(path: Path) -> None:
    wanted = [
        (node.module, name.name)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("fedstill")
        for name in node.names
    ]
    missing = [f"{module}.{name}" for module, name in wanted if name not in vars(importlib.import_module(module))]
    assert not missing
