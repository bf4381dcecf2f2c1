"""A paper's claims with their verdicts: in the terminal, on the page, and as Markdown."""

from collections.abc import Sequence
from html import escape

from fedstill.experiment.claims import Judgement
from fedstill.report import sections

MARKS = {"held": "✓", "not held": "✗", "not decided": "?"}
RULE = (
    "A statement compares cells seed by seed. One-sided paired t-tests at 5 %: held where the differences are as "
    "claimed, not held where the contrary is shown, not decided otherwise. With three seeds only clear differences are "
    "decided. Differences that are the same in every seed are judged by their sign. A target that was not reached is "
    "worse than any that was. The p-value is the one that decided: where a claim is not held, that of the contrary."
)


def lines(judgements: Sequence[Judgement]) -> list[str]:
    """A line for each claim: verdict, claim, evidence."""
    return [f"{MARKS[j.verdict]} {j.verdict}: {j.claim.text} ({j.evidence})" for j in judgements]


def section(judgements: Sequence[Judgement]) -> str:
    """The page's section on claims; empty where a preset makes none."""
    if not judgements:
        return ""
    body = []
    for judgement in judgements:
        by_test = judgement.claim.relation != "is"
        each = "".join(
            f"<li>{escape(s.text)}: {escape(s.verdict)}{f', {s.tested}' if by_test else ''}</li>"
            for s in judgement.statements
        )
        details = f"<details><summary>{escape(judgement.evidence)}</summary><ul>{each}</ul></details>"
        verdict = f"{MARKS[judgement.verdict]} {judgement.verdict}"
        cells = sections.cell(escape(verdict), "name") + sections.cell(escape(judgement.claim.text), "left")
        body.append(f'<tr data-verdict="{judgement.verdict}">{cells}{sections.cell(details, "left")}</tr>')
    table = sections.table(["verdict", "claim", "evidence"], body, left=(1, 2))
    return sections.section("claims", "The paper's claims", table, about=escape(RULE))


def markdown(judgements: Sequence[Judgement]) -> str:
    """A Markdown table of claims."""
    rows = [f"| {MARKS[j.verdict]} {j.verdict} | {j.claim.text} | {j.evidence} |" for j in judgements]
    return "\n".join(["| verdict | claim | evidence |", "|---|---|---|", *rows])


def sentence(judgements: Sequence[Judgement]) -> str:
    """A page's first line on its claims: reached, in part or not, not decided or not measured; those not held first."""
    measured = [j for j in judgements if any(len(s.differences) > 1 for s in j.statements)]
    if not measured:
        return "Its paper's claim has not been measured here yet."
    held = [j for j in measured if j.verdict == "held"]
    missed = [j for j in measured if j.verdict != "held"]
    results = "; ".join(f"{j.claim.text}: {j.verdict} ({j.evidence})" for j in [*missed, *held])
    if missed:
        failed = any(j.verdict == "not held" for j in missed)
        none = "Does not reach its paper's claim here." if failed else "Not shown to reach its paper's claim here."
        return f"**{'Reaches only a part of what its paper claims here.' if held else none}** {results}."
    rest = "" if len(measured) == len(judgements) else " Not all of it has been measured yet."
    return f"Reaches its paper's claim here: {results}.{rest}"
