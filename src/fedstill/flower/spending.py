"""What a site's samples have cost in privacy over all runs: ε adds up, whatever the run, and so does δ.

Within a run a client keeps account of its turns (`parts.privacy`). Here a run's whole promise (ε, δ) is entered when
its first turn begins, so that neither a run that is broken off nor one that is begun again is free. The book is the
site's, not the run's: it stays when old runs are forgotten. It does not ask which data the site has: samples that were
joined by others are still the same people's.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedstill.core import record
from fedstill.core.errors import FedstillError
from fedstill.experiment.config import Experiment
from fedstill.flower.messages import readable
from fedstill.flower.policy import Policy
from fedstill.parts.privacy import PrivateSamples

FILE = "privacy.json"


@dataclass(frozen=True)
class Spending:
    """The book of ε in a site's state folder."""

    state: Path
    policy: Policy

    def allow(self, run_id: str, plan: Experiment) -> None:
        """Refuse a run whose promise is more than the policy leaves over all runs."""
        most, promise = self.policy.epsilon_all_runs, promised(plan)
        if most is None or promise is None or promise.epsilon is None:
            return
        before = {number: float(entry["epsilon"]) for number, entry in self.read().items() if number != run_id}
        spent = sum(before.values())
        if spent + promise.epsilon > most * (1 + 1e-9):
            raise FedstillError(
                f"ε = {promise.epsilon:g}: {len(before)} runs have spent {spent:g} here, and this site's policy allows "
                f"{most:g} over all runs"
            )

    def enter(self, run: str, run_id: str, plan: Experiment) -> bool:
        """Enter a run's promise before its first turn; is it new in the book?"""
        promise = promised(plan)
        book = self.read()
        if promise is None or promise.epsilon is None or run_id in book:
            return False
        self.allow(run_id, plan)
        book[run_id] = {"run": run, "epsilon": promise.epsilon, "delta": promise.delta}
        record.write(self.state / FILE, json.dumps(book, indent=2).encode())
        return True

    def read(self) -> dict[str, Mapping[str, Any]]:
        """By run, what it has promised; a damaged book is an error, never an empty one."""
        file = self.state / FILE
        if not file.exists():
            return {}
        try:
            book = dict(json.loads(file.read_text()))
            for entry in book.values():
                float(entry["epsilon"])
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise FedstillError(f"{FILE}: this site's book of ε is damaged ({readable(str(error))})") from None
        return book


def promised(plan: Experiment) -> PrivateSamples | None:
    """What a plan promises each sample in the whole run; None where it promises nothing."""
    promises = [wrapper for wrapper in plan.wrappers if isinstance(wrapper, PrivateSamples) and wrapper.epsilon]
    return max(promises, key=lambda wrapper: wrapper.epsilon or 0.0, default=None)
