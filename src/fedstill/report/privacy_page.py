"""The page's section on privacy: ε that clients spent, accuracy against it, and what an audit learnt."""

from collections.abc import Sequence
from html import escape

from fedstill.experiment.inference import plainly
from fedstill.experiment.result import Result
from fedstill.report.privacy import spent
from fedstill.report.sections import cell, section, table

SHOWN = 8
"""Rounds shown for each run, evenly spread; the last one always."""


def section_of(results: Sequence[Result]) -> str:
    """A table of ε for runs that promise privacy, one of audits for runs that have one; empty where neither is."""
    spent = [row for result in results for row in _spent(result)]
    audits = [row for result in results for row in _audit(result)]
    against = _against(results)
    parts = []
    if spent:
        head = ["run", "round", "ε by client", "largest", "δ"]
        parts.append(table(head, spent, left=(2,)))
    if against:
        head = ["run", "ε", "model", "AMP"]
        parts.append("<h3>Accuracy against ε</h3>" + table(head, against, left=(2,)))
    if audits:
        head = ["run", "promised", "target", "attack", "AUC", "TPR at 1 % FPR"]
        parts.append("<h3>Audits</h3>" + table(head, audits, left=(1, 2, 3)))
    if not parts:
        return ""
    about = (
        "ε that a client has spent so far, at δ: the smaller, the less can be told of any one sample (or, where it "
        "says all, of any one client). Clients have different samples, so the largest is what the run costs in all. An "
        "audit attacks what left: an AUC of .5 is guessing; brackets hold 95 % intervals."
    )
    return section("privacy", "Privacy", *parts, about=about)


def _name(result: Result) -> str:
    return cell(f"<code>{escape(result.place)}</code>", "name")


def _spent(result: Result) -> list[str]:
    """A row for some of the rounds, with every client's ε up to then."""
    rows = []
    for now in spent(result.rows):
        for whole in (False, True):  # samples, and clients as wholes
            epsilons = {client: epsilon for client, epsilon in now.epsilon.items() if (client == "all") == whole}
            if not epsilons:
                continue
            delta = now.delta[next(iter(epsilons))]
            each = ", ".join(f"{_client(result, client)}: {epsilon:.3g}" for client, epsilon in epsilons.items())
            numbers = cell(f"{max(epsilons.values()):.3g}") + cell(f"{delta:g}" if delta else "")
            rows.append(_name(result) + cell(str(now.round)) + cell(escape(each), "left") + numbers)
    every = max(1, -(-len(rows) // SHOWN))
    return [f"<tr>{row}</tr>" for row in rows[::-1][::every][::-1]]


def _client(result: Result, client: str) -> str:
    """The name of a client's site, where it has one."""
    number = int(client) if client.isdigit() else len(result.client_names)
    return result.client_names[number] if number < len(result.client_names) else client


def _against(results: Sequence[Result]) -> list[str]:
    """A row for every model of every run, by the ε it cost; empty where all cost the same."""
    rows = []
    for result in results:
        largest = _largest(result)
        for model in result.models:
            amp = result.last(model).get("amp")
            if amp is not None:
                epsilon = "∞" if largest is None else f"{largest:.3g}"
                cells = (
                    _name(result) + cell(epsilon) + cell(escape(model), "left") + cell(result.metric("amp").text(amp))
                )
                rows.append((-(largest or float("inf")), f"<tr>{cells}</tr>"))
    return [row for _, row in sorted(rows, key=lambda pair: pair[0])] if len({e for e, _ in rows}) > 1 else []


def _largest(result: Result) -> float | None:
    """The largest ε that the run cost anybody; None where nothing was promised."""
    spent = [e for row in result.rows for e in row.get("facts", {}).get("epsilon_spent", {}).values()]
    spent += [row["facts"]["epsilon_clients"] for row in result.rows if "epsilon_clients" in row.get("facts", {})]
    return max(spent, default=None)


def _audit(result: Result) -> list[str]:
    audit = result.file("audit.json")
    if audit is None:
        return []
    promise = ", ".join(f"{name} = {value:.3g}" for name, value in audit["privacy"].items()) or "nothing"
    rows = []
    for row in audit["membership"]:
        words = [promise, row["target"], row["attack"]]
        cells = _name(result) + "".join(cell(escape(text), "left") for text in words)
        rows.append(f"<tr>{cells}{cell(plainly(row['auc']))}{cell(plainly(row['tpr']))}</tr>")
    return rows
