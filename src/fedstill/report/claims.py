"""A paper's claims with their verdicts: in the terminal, on the page, and as Markdown."""

from collections.abc import Sequence
from html import escape

from fedstill.experiment.claims import WITH_VALUE
from fedstill.experiment.judging import Judgement
from fedstill.experiment.statement import Verdict
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
        by_test = judgement.claim.relation not in WITH_VALUE
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
    rows = [markdown_line([f"{MARKS[j.verdict]} {j.verdict}", j.claim.text, j.evidence]) for j in judgements]
    return "\n".join(["| verdict | claim | evidence |", "|---|---|---|", *rows])


def markdown_line(cells: Sequence[str]) -> str:
    """A line of a Markdown table.

    >>> print(markdown_line(["FedKF", "P(a|b)"]))
    | FedKF | P(a\\|b) |
    """
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def sentence(judgements: Sequence[Judgement]) -> str:
    """What a page opens with: whether its method reaches what its paper claims, then the claims, those not held first.

    What this project claims beyond the paper does not count. A single claim is followed by its evidence; several are a
    list, and their evidence stands in the page's table of claims.
    """
    papers = [judgement for judgement in judgements if not judgement.claim.ours]
    measured = [j for j in papers if any(len(s.differences) > 1 for s in j.statements)]
    if not measured:
        return "Its paper's claim has not been measured here yet."
    opening = _opening([judgement.verdict for judgement in measured])
    rest = "" if len(measured) == len(papers) else " Not all of it has been measured yet."
    if len(measured) == 1:
        (only,) = measured
        return f"**{opening}** {only.claim.text}: {only.verdict} ({only.evidence}).{rest}"
    order = ("not held", "not decided", "held")
    listed = [f"- {j.verdict}: {j.claim.text}" for j in sorted(measured, key=lambda j: order.index(j.verdict))]
    return "\n".join([f"**{opening}**{rest}", "", *listed])


def _opening(verdicts: Sequence[Verdict]) -> str:
    """What verdicts together say of a paper: a part of it is called unreached only where something is refuted.

    >>> _opening(["held", "not decided", "not decided"])
    "Shown to reach 1 of 3 of its paper's claims here; the others are not decided."
    """
    held, whole = verdicts.count("held"), len(verdicts)
    if held == whole:
        return "Reaches its paper's claim here."
    if held and "not held" in verdicts:
        return f"Reaches only a part of what its paper claims here: {held} of {whole}."
    if held:
        others = "the other is" if whole - held == 1 else "the others are"
        return f"Shown to reach {held} of {whole} of its paper's claims here; {others} not decided."
    return f"{'Does not reach' if 'not held' in verdicts else 'Not shown to reach'} its paper's claim here."
