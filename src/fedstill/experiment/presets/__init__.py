"""The papers' tables and figures as files: each a base experiment, rows, columns, and the paper's numbers."""

import tomllib
from importlib import resources
from typing import Any

from fedstill.core.errors import unknown


def presets() -> list[str]:
    """The names of all presets, `paper/table`."""
    room = resources.files(__name__)
    return sorted(
        f"{paper.name}/{file.name.removesuffix('.toml')}"
        for paper in room.iterdir()
        if paper.is_dir()
        for file in paper.iterdir()
        if file.name.endswith(".toml")
    )


def read_preset(name: str) -> dict[str, Any]:
    """A preset's content."""
    if name not in presets():
        raise unknown("preset", name, presets())
    return tomllib.loads((resources.files(__name__) / f"{name}.toml").read_text())


def describe(name: str) -> str:
    """A preset's title."""
    return str(read_preset(name)["title"])
