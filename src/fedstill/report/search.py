"""A search on the page: every trial with its values and score; what was found is a file to run."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from fedstill.experiment.config import experiment
from fedstill.experiment.metrics import Shown
from fedstill.experiment.search import TUNING_SEED, Trial, best
from fedstill.experiment.toml import toml
from fedstill.report import sections


def section(trials: Sequence[Trial], amp: Shown) -> str:
    """A table of the trials, the best one marked."""
    chosen = best(trials)
    names = list(chosen.point.values)
    rows = []
    for number, trial in enumerate(trials, 1):
        mark = " class=best" if trial is chosen else ""
        score = "failed" if trial.score is None else amp.text(amp.direction * trial.score)
        cells = "".join(f"<td>{escape(trial.point.values[name])}</td>" for name in names)
        rows.append(f'<tr><th scope="row">{number}</th>{cells}<td{mark}>{escape(score)}</td></tr>')
    about = (
        f"Proposed by Optuna's TPE and judged with seeds from {TUNING_SEED} on, which nothing else on this page uses; "
        "the best is run again with the seeds that are reported, beside the settings that the search began from."
    )
    head = ["trial", *names, amp.heading]
    return sections.section("lead", "The search", sections.table(head, rows), about=about)


def write_best(trials: Sequence[Trial], plan: Mapping[str, Any], file: Path) -> None:
    """Write the experiment with the best values: `fedstill run best.toml`."""
    chosen = best(trials)
    settings = experiment({**plan, "seed": 1}).plain()
    head = f"# fedstill run {file}\n# the best of {len(trials)} trials: {chosen.point.label}\n\n"
    file.write_text(head + toml(settings), encoding="utf-8")
