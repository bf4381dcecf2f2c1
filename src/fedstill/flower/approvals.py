"""Experiments that a second person approved, at a hub that asks for one (`fedstill hub --approval`)."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedstill.core.record import write
from fedstill.flower.private import whole
from fedstill.flower.runbook import consented_part, digest


def number(run: str, settings: Mapping[str, Any]) -> str:
    """The number of an experiment under a run's name: of all that decides its results, and its rounds."""
    return digest({"run": run, "experiment": consented_part(settings)})


class Approvals:
    """Who approved which experiment, in a hub's folder."""

    def __init__(self, home: Path) -> None:
        self.file = home / "approvals.json"

    def approve(self, run: str, settings: Mapping[str, Any], person: str) -> str:
        """Enter a person's approval; the experiment's number."""
        known = self._read()
        approved = number(run, settings)
        write(self.file, json.dumps({**known, approved: sorted({*known.get(approved, []), person})}, indent=2).encode())
        return approved

    def missing(self, run: str, settings: Mapping[str, Any], starter: str) -> bool:
        """Has nobody but the one who starts it approved this experiment?"""
        return not set(self._read().get(number(run, settings), [])) - {starter}

    def _read(self) -> dict[str, list[str]]:
        with whole(self.file):
            return dict(json.loads(self.file.read_text())) if self.file.exists() else {}
