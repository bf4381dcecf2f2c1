"""A hub's health: that it lives, and numbers for Prometheus."""

import time
from collections import Counter
from pathlib import Path
from typing import Any

from fedstill.flower.exposition import Family


class Health:
    """Counts what passes the guard."""

    def __init__(self) -> None:
        self.since = time.time()
        self.counts: Counter[tuple[str, str]] = Counter()
        self.seen: dict[str, float] = {}

    def count(self, what: str, site: str = "") -> None:
        """One more request of this kind, from this site."""
        self.counts[what, site] += 1
        if site:
            self.seen[site] = time.time()

    def state(self) -> dict[str, Any]:
        """That the hub is up; it says nothing about runs or sites, since anybody may ask."""
        return {"status": "ok", "seconds": round(time.time() - self.since)}

    def prometheus(self, runs: Path) -> str:
        """The numbers in Prometheus' text format."""
        now = time.time()
        requests = [({"kind": what, "site": site}, count) for (what, site), count in sorted(self.counts.items())]
        silent = [({"site": site}, round(now - last)) for site, last in sorted(self.seen.items())]
        rounds = [({"run": file.parent.name}, _lines(file)) for file in sorted(runs.glob("*/metrics.jsonl"))]
        families = (
            Family(
                "fedstill_up_seconds", "Seconds since the hub was started.", "gauge", [({}, round(now - self.since))]
            ),
            Family("fedstill_requests_total", "Requests of sites, and requests refused.", "counter", [*requests]),
            Family("fedstill_site_silent_seconds", "Seconds since a site was last heard of.", "gauge", [*silent]),
            Family("fedstill_run_rounds", "Rounds that a run has done.", "gauge", [*rounds]),
        )
        return "".join(family.text() for family in families)


def _lines(file: Path) -> int:
    with file.open("rb") as lines:
        return sum(1 for _ in lines)
