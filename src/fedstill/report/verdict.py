"""What a comparison says, in plain sentences made from its numbers. Like is compared with like: a method's active model
with the others' active models, its overall with their overall."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedstill.experiment.metrics import Shown
from fedstill.report.tables import cell

KINDS = {
    "active": "active: the average of the models of the clients that took part in the round",
    "overall": "overall: the average of every client's latest model, of those away in the round too",
    "steady": "steady: the server's model, averaged over the last rounds",
    "personal": "personal: every client's own model, each on its own test",
    "global": "global: the server's model after it was distilled or tuned there",
    "average": "average: the server's model before that",
    "calibrated": "calibrated: the average with a classifier calibrated on features",
    "centralised": "centralised: one model of all data in one place, which is no federation",
}
"""What the kinds of models are, by name."""
JUDGED = ("amp", "wlp", "fm")
"""What a sentence compares, in this order."""

Row = Mapping[str, Any]
"""A row of `tables.summary`: a method's model, each metric as mean and spread over seeds."""


def glossary(models: Sequence[str]) -> str:
    """What these kinds of models are, where it is known."""
    return "; ".join(KINDS[name] for name in dict.fromkeys(models) if name in KINDS)


def judged(one: Row, other: Row, metrics: Sequence[Shown]) -> str:
    """`better in AMP (81.00 against 80.00 %), worse in FM (2.00 against 1.00 10⁻³)`: one against another.

    Numbers that are shown alike are `the same`.
    """
    words: dict[str, list[str]] = {"better": [], "worse": [], "the same": []}
    for metric in _judged(metrics):
        mine, its = one.get(metric.key), other.get(metric.key)
        if mine is None or its is None:
            continue
        texts = metric.text(mine["mean"]), metric.text(its["mean"])
        gap = metric.direction * (mine["mean"] - its["mean"])
        word = "the same" if texts[0] == texts[1] else "better" if gap > 0 else "worse"
        numbers = texts[0] if word == "the same" else f"{texts[0]} against {texts[1]}"
        words[word].append(f"{metric.title} ({numbers} {metric.unit})")
    return ", ".join(f"{word} in {' and '.join(known)}" for word, known in words.items() if known)


def sentences(rows: Sequence[Row], metrics: Sequence[Shown]) -> list[str]:
    """A sentence for each kind of model: how the best method compares with the others that have such a model."""
    lines = []
    for model in dict.fromkeys(row["model"] for row in rows):
        inside = [row for row in rows if row["model"] == model and row.get("amp")]
        if inside:
            lines.append(_sentence(model, inside, metrics))
    return lines


def _sentence(model: str, rows: Sequence[Row], metrics: Sequence[Shown]) -> str:
    amp = next(metric for metric in metrics if metric.key == "amp")
    best, *rest = sorted(rows, key=lambda row: -amp.direction * row["amp"]["mean"])
    if not rest:
        values = ", ".join(f"{m.title} {cell(best[m.key], m)} {m.unit}" for m in _judged(metrics) if best.get(m.key))
        return f"The {model} model of {best['method']} has {values} after {best['rounds']} rounds."
    words = f"Of the {model} models {best['method']}'s is {judged(best, rest[0], metrics)} than {rest[0]['method']}'s"
    if len(rest) > 1:
        others = (f"{row['method']} {cell(row['amp'], amp)} {amp.unit}" for row in rest[1:4])
        more = f" and {len(rest) - 4} more" if len(rest) > 4 else ""
        words += f"; then, in {amp.title}, come {', '.join(others)}{more}"
    return f"{words}; {_seeds([best, rest[0]])}."


def _judged(metrics: Sequence[Shown]) -> list[Shown]:
    known = {metric.key: metric for metric in metrics}
    return [known[key] for key in JUDGED if key in known]


def _seeds(rows: Sequence[Row]) -> str:
    """How much the numbers rest on."""
    fewest = min(len(row["seeds"]) for row in rows)
    return f"means of {fewest} seeds" if fewest > 1 else "one seed, so a small difference may be chance"
