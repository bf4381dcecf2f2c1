"""A hub's health: that it lives, and numbers for Prometheus."""

import time
from collections import Counter
from pathlib import Path
from typing import Any


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
        lines = [
            "# HELP fedstill_up_seconds Seconds since the hub was started.",
            "# TYPE fedstill_up_seconds gauge",
            f"fedstill_up_seconds {time.time() - self.since:.0f}",
            "# HELP fedstill_requests_total Requests of sites, and requests refused.",
            "# TYPE fedstill_requests_total counter",
        ]
        for (what, site), count in sorted(self.counts.items()):
            lines.append(f'fedstill_requests_total{{kind="{what}",site="{site}"}} {count}')
        lines += [
            "# HELP fedstill_site_silent_seconds Seconds since a site was last heard of.",
            "# TYPE fedstill_site_silent_seconds gauge",
        ]
        for site, last in sorted(self.seen.items()):
            lines.append(f'fedstill_site_silent_seconds{{site="{site}"}} {time.time() - last:.0f}')
        lines += [
            "# HELP fedstill_run_rounds Rounds that a run has done.",
            "# TYPE fedstill_run_rounds gauge",
        ]
        for folder in sorted(runs.glob("*/metrics.jsonl")):
            with folder.open("rb") as file:
                rounds = sum(1 for _ in file)
            lines.append(f'fedstill_run_rounds{{run="{folder.parent.name}"}} {rounds}')
        return "\n".join(lines) + "\n"
