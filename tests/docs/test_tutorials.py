"""The tutorials: notebooks are in step with their scripts, short enough to read, and every cell runs."""

import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from fedstill.report.catalogue import methods

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
NEEDS = {"privacy_budget": ("opacus", "dp_accounting"), "three_sites": ("flwr",)}
"""Examples that need an extra."""
LONG = ("three_sites",)
"""Examples that start a hub and sites: in sync always, run by `make docs-test`."""


@pytest.fixture(scope="module")
def notebooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("notebooks", ROOT / "docs" / "notebooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_script_is_cut_into_text_and_code(notebooks: ModuleType) -> None:
    found = notebooks.cells("# %% [markdown]\n# # Title\n# text\n\n# %%\nx = 1\n\n# %%\ny = x\n")
    assert found == [("markdown", "# Title\ntext"), ("code", "x = 1"), ("code", "y = x")]
    assert notebooks.markdown("# %% [markdown]\n# Hello\n\n# %%\nx = 1\n") == "Hello\n\n```python\nx = 1\n```\n"


def test_there_is_a_notebook_for_every_script_and_no_other(notebooks: ModuleType) -> None:
    there = {path.stem for path in notebooks.NOTEBOOKS.glob("*.ipynb")}
    assert there == {script.stem for script in SCRIPTS}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_notebook_is_in_step_with_its_script_and_runs(
    script: Path, notebooks: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in NEEDS.get(script.stem, ()):
        pytest.importorskip(package)
    text = script.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 60
    made = (notebooks.NOTEBOOKS / f"{script.stem}.ipynb").read_text(encoding="utf-8")
    assert made == notebooks.text(text), "make notebooks"
    if script.stem in LONG and os.environ.get("FEDSTILL_DEPLOY_TESTS") != "all":
        pytest.skip("long form: make docs-test")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(methods, "_entries", dict(methods._entries))  # what an example registers is forgotten
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    module = ModuleType(script.stem)  # classes made in a cell are looked up in their module
    monkeypatch.setitem(sys.modules, script.stem, module)
    names = vars(module)
    for cell in json.loads(made)["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"{script.name}", "exec"), names)
