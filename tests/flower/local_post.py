"""The hub's post without a network: sites are functions in this process, so that a whole run takes a moment."""

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from federation import Answer

from fedstill.core.errors import FedstillError
from fedstill.experiment.config import experiment
from fedstill.flower.audit import AuditLog
from fedstill.flower.enrolment import deployable
from fedstill.flower.post import INTRODUCTION, Collected, UnderWay
from fedstill.flower.serve import serve

AVG: dict[str, Any] = {"method": {"name": "fedavg", "lr": 0.05, "epochs": 1}, "model": "mlp", "seed": 4}


class LocalPost:
    """Every site is a node, registered under its name."""

    def __init__(self, sites: Mapping[str, Answer], audit: AuditLog | None = None) -> None:
        self.audit = audit or AuditLog(Path(tempfile.mkdtemp()) / "audit.jsonl")
        self.sites = dict(enumerate(sites.items(), 100))
        self.under_way: dict[str, UnderWay] = {}
        self.waiting: list[tuple[int, Collected, str]] = []

    def nodes(self) -> dict[int, tuple[str, str]]:
        return {node: (name, "always") for node, (name, _) in self.sites.items()}

    def allow(self, count: int) -> None:
        pass

    def send(self, heads: Mapping[int, bytes], body: bytes | None, kind: str, seconds: float, group: str = "") -> None:
        for node, head in heads.items():
            self.waiting.append((node, self.sites[node][1](head, body), kind))

    def drop(self, node: int) -> None:
        self.waiting = [waits for waits in self.waiting if waits[0] != node]

    def forget(self) -> None:
        self.waiting = [waits for waits in self.waiting if waits[2] == INTRODUCTION]

    def collect(self, limit: int) -> Iterator[tuple[int, Collected]]:
        waiting, self.waiting = self.waiting, []
        for node, collected, _ in waiting:
            large = not isinstance(collected, FedstillError) and sum(len(part or b"") for part in collected) > limit
            yield node, FedstillError("refused: its answer: it is larger than that") if large else collected


def local_run(
    sites: Mapping[str, Answer], folder: Path, news: list[Any] | None = None, **settings: Any
) -> list[dict[str, Any]]:
    """Serve a run over these sites; the rows of its metrics."""
    plan = {"clients": len(sites), "active": 1.0, "rounds": 2, **AVG, **settings}
    tell = (news if news is not None else []).append
    post: Any = LocalPost(sites, AuditLog(folder / "audit.jsonl"))
    return list(serve(post, "r", deployable(experiment(plan)).plain(), folder, None, 1.0, tell).rows)
