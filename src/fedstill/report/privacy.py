"""What people see of privacy: which guarantee covers which field of an upload, and what an audit found."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

import fedstill.methods  # noqa: F401 (registers them)
from fedstill.core.errors import FedstillError, UsageError
from fedstill.core.method import Method, methods
from fedstill.core.turn import AnyMethod, Wrapper, ledger, misfit
from fedstill.core.value import build_named
from fedstill.experiment.inference import plainly
from fedstill.parts.client_privacy import PrivateClients
from fedstill.parts.privacy import PrivateSamples
from fedstill.parts.secure_sums import SecureSums

GUARANTEES: Mapping[str, Wrapper] = {
    "--private epsilon=8": PrivateSamples(epsilon=8.0),
    "--private clients,epsilon=8": PrivateClients(epsilon=8.0),
    "--secure-sums": SecureSums(),
}
"""The guarantees a run can be given, as they are asked for."""

UNCOVERED = (
    "none of these covers what a deployed site tells beside its uploads: counts, classes, means and deviations when it "
    "enrols, right answers at exams (fedstill site --explain)"
)
"""What leaves by other ways than an upload."""


def coverage(method: AnyMethod) -> dict[str, dict[str, str]]:
    """By guarantee, what it does to each field of what leaves a client of this method; or why it cannot be given."""
    effects: dict[str, dict[str, str]] = {}
    for words, wrapper in GUARANTEES.items():
        try:
            fitted = wrapper.fitted(method)
        except UsageError as error:
            effects[words] = {"refused": str(error)}
            continue
        odd = misfit(fitted, [wrapper])
        effects[words] = {"refused": odd[1]} if odd else ledger(fitted, [wrapper])
    return effects


def left_clients(plan: Mapping[str, Any]) -> dict[str, str]:
    """Field by field, what left the clients of a run and what was done to it; nothing of a method that is not here."""
    try:
        known = methods[plan["method"]["name"]]
    except FedstillError:
        return {}
    try:
        chain = [build_named(Wrapper, wrapper) for wrapper in plan.get("wrappers", [])]
        method: Any = build_named(Method, plan["method"])  # type: ignore[type-abstract]
        return ledger(method, chain)
    except FedstillError:  # settings of another version
        return dict(known.leaves_client())


@dataclass(frozen=True)
class Spent:
    """Privacy that was spent up to a round: ε and δ by client, for its samples; `all`: for each client as a whole."""

    round: int
    epsilon: Mapping[str, float]
    delta: Mapping[str, float]


def spent(rows: Sequence[Mapping[str, Any]]) -> list[Spent]:
    """Privacy spent, round by round, from a run's lines; empty where none was promised."""
    known: dict[str, float] = {}
    deltas: dict[str, float] = {}
    rounds = []
    for row in rows:
        facts = row.get("facts", {})
        known |= facts.get("epsilon_spent", {})
        if "epsilon_clients" in facts:
            known["all"] = facts["epsilon_clients"]
            deltas["all"] = facts.get("delta_clients", facts.get("delta", 0.0))  # older runs had one name for both
        deltas |= dict.fromkeys(facts.get("epsilon_spent", {}), facts.get("delta", 0.0))
        if known:
            order = sorted(known, key=lambda client: (not client.isdigit(), int(client) if client.isdigit() else 0))
            rounds.append(Spent(row["round"], {k: known[k] for k in order}, {k: deltas[k] for k in order}))
    return rounds


def show_coverage(console: Console, coverage: Mapping[str, Mapping[str, str]]) -> None:
    """Print which guarantee covers what."""
    console.print("what covers it:")
    for words, effects in coverage.items():
        console.print(f"  {words}", markup=False)
        for name, what in effects.items():
            console.print(f"    {name}: {what}", markup=False)
    console.print(f"  {UNCOVERED}\n", markup=False)


def show_audit(audit: Mapping[str, Any]) -> None:
    """Print what an audit found."""
    console = Console(highlight=False)
    promise = ", ".join(f"{name} = {value:.3g}" for name, value in audit["privacy"].items()) or "none"
    console.print(f"[bold]{audit['method']}[/bold], uploads of round {audit['round']}; promised: {promise}\n")
    table = Table(box=None, pad_edge=False)
    for column in ("target", "attack", "AUC", "TPR at 1 % FPR"):
        table.add_column(column, overflow="fold")
    for row in audit["membership"]:
        table.add_row(row["target"], row["attack"], plainly(row["auc"]), plainly(row["tpr"]))
    console.print("membership: who was trained on (AUC .5 is guessing)")
    console.print(table)
    shares = audit["label_shares"]
    if shares:
        console.print(
            f"\nlabel shares of {shares['clients']} clients read off their updates: "
            f"correlation {plainly(shares)}; by guessing {shares['guessing']:.3f}"
        )
    step = audit["reconstruction"]
    result = step.get("skipped") or f"likeness {step['likeness']:.4f} to the nearest of {step['samples']} samples"
    console.print(f"\na sample read off a step on it alone: {result}")
