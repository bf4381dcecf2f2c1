"""Notebooks in `docs/tutorials/`, made from the scripts in `examples/`: `make notebooks`.

A script is cut at its lines `# %%`: what follows `# %% [markdown]` is text, the rest is code.
"""

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
EXAMPLES, NOTEBOOKS = ROOT / "examples", ROOT / "docs" / "tutorials"


class Cell(NamedTuple):
    """A piece of a notebook: `markdown` or `code`, and its text."""

    kind: str
    text: str


def cells(script: str) -> list[Cell]:
    """The cells of a script.

    >>> cells("# %% [markdown]\\n# Hello\\n\\n# %%\\nx = 1\\n")
    [Cell(kind='markdown', text='Hello'), Cell(kind='code', text='x = 1')]
    """
    found = []
    for part in f"\n{script}".split("\n# %%")[1:]:
        head, _, body = part.partition("\n")
        if "[markdown]" in head:
            lines = [line.removeprefix("#").removeprefix(" ") for line in body.strip().splitlines()]
            found.append(Cell("markdown", "\n".join(lines)))
        else:
            found.append(Cell("code", body.strip().replace("  # fmt: skip", "")))
    return found


def notebook(script: str) -> dict[str, Any]:
    """The script as a notebook, without outputs."""
    made = []
    for place, cell in enumerate(cells(script)):
        entry = {"cell_type": cell.kind, "id": f"cell-{place}", "metadata": {}, "source": cell.text.splitlines(True)}
        made.append(entry if cell.kind == "markdown" else {**entry, "execution_count": None, "outputs": []})
    language = {"language_info": {"name": "python"}}
    return {"cells": made, "metadata": language, "nbformat": 4, "nbformat_minor": 5}


def markdown(script: str) -> str:
    """The script as a page of the site."""
    parts = [cell.text if cell.kind == "markdown" else f"```python\n{cell.text}\n```" for cell in cells(script)]
    return "\n\n".join(parts) + "\n"


def text(script: str) -> str:
    """The notebook's file."""
    return json.dumps(notebook(script), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    NOTEBOOKS.mkdir(exist_ok=True)
    for script in sorted(EXAMPLES.glob("*.py")):
        target = NOTEBOOKS / f"{script.stem}.ipynb"
        target.write_text(text(script.read_text(encoding="utf-8")), encoding="utf-8")
        print(target.relative_to(ROOT), file=sys.stderr)
