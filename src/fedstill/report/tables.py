"""Runs side by side: mean ± spread over seeds, last round and best round."""

import csv
import io
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from rich.console import Console
from rich.table import Table

from fedstill.core.errors import UsageError
from fedstill.experiment.result import Result

METRICS = {"amp": "AMP ↑", "fm": "FM ↓", "wlp": "WLP ↑", "accuracy": "global test ↑"}
NEUTRAL = ("seed", "workers", "device", "memory", "checkpoint_every", "evaluate_every")
"""Settings in which runs of one group may differ."""


def collect(paths: Iterable[Path]) -> list[Result]:
    """The runs in these folders; a folder of runs stands for all of them."""
    found = []
    for path in paths:
        if (path / "experiment.json").exists():
            found.append(Result.read(path))
        else:
            found += [Result.read(inner.parent) for inner in sorted(path.glob("*/experiment.json"))]
    whole = [result for result in found if result.models]
    if not whole:
        raise UsageError(f"{', '.join(map(str, paths)) or 'no folder given'}: no run with a finished round there")
    return whole


def comparison(results: Sequence[Result]) -> list[dict[str, Any]]:
    """One row for each experiment and model: every metric's mean and spread over the seeds, last and best round."""
    groups: dict[str, list[Result]] = {}
    for result in results:
        same = {k: v for k, v in result.experiment.items() if k not in NEUTRAL}
        groups.setdefault(json.dumps(same, sort_keys=True), []).append(result)
    rows = []
    for group in groups.values():
        for model in group[0].models:
            last = [r.last(model) for r in group if model in r.models]
            best = [r.best(model) for r in group if model in r.models]
            row: dict[str, Any] = {
                "method": label(group[0].experiment, results),
                "data": group[0].experiment["data"],
                "model": model,
                "rounds": len(group[0].rows),
                "seeds": sorted(r.experiment["seed"] for r in group),
            }
            for metric in METRICS:
                row[metric] = spread([m.get(metric) for m in last])
                row[f"best_{metric}"] = spread([m.get(metric) for m in best])
            row["bytes"] = {way: round(fmean(r.bytes()[way] for r in group)) for way in ("down", "up")}
            row["seconds"] = fmean(r.seconds for r in group)
            rows.append(row)
    return rows


def label(experiment: Mapping[str, Any], others: Sequence[Result]) -> str:
    """The method's name, with the settings in which runs of the same method differ."""
    mine = _flat(experiment)
    kin = [_flat(o.experiment) for o in others if o.experiment["method"]["name"] == experiment["method"]["name"]]
    differ = sorted(k for k in mine if k not in NEUTRAL and any(o.get(k) != mine[k] for o in kin))
    extra = ", ".join(f"{k.removeprefix('method.')}={mine[k]}" for k in differ)
    return str(experiment["method"]["name"]) + (f" ({extra})" if extra else "")


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in settings.items():
        out |= _flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return out


def spread(values: Sequence[float | None]) -> dict[str, float] | None:
    """Mean and standard deviation over seeds (0 for one); None where there is no value."""
    known = [v for v in values if v is not None and v == v]
    if not known:
        return None
    return {"mean": fmean(known), "std": stdev(known) if len(known) > 1 else 0.0}


def cell(value: Mapping[str, float] | None, metric: str) -> str:
    """Mean ± spread for the eye: accuracies in per cent, FM in thousandths."""
    if value is None:
        return "–"
    factor = 1000 if metric.endswith("fm") else 100
    text = f"{factor * value['mean']:.2f}"
    return text + (f" ± {factor * value['std']:.2f}" if value["std"] else "")


def _cells(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    head = ["method", "data", "model", "rounds", "seeds"]
    head += [f"{m} {'(10⁻³)' if k == 'fm' else '(%)'}" for k, m in METRICS.items()] + ["best AMP (%)"]
    body = [
        [str(r["method"]), str(r["data"]), r["model"], str(r["rounds"]), str(len(r["seeds"]))]
        + [cell(r[metric], metric) for metric in METRICS]
        + [cell(r["best_amp"], "amp")]
        for r in rows
    ]
    return head, body


def text(rows: Sequence[Mapping[str, Any]], form: str) -> str:
    """The comparison as CSV (plain numbers), Markdown or LaTeX."""
    head, body = _cells(rows)
    if form == "csv":
        out = io.StringIO()
        names = [f"{p}{m}" for p in ("", "best_") for m in METRICS]
        writer = csv.writer(out)
        writer.writerow(["method", "data", "model", "rounds", "seeds", *(f"{n}_{s}" for n in names for s in ("mean", "std"))])
        for r in rows:
            numbers = [(r[n] or {}).get(s, "") for n in names for s in ("mean", "std")]
            writer.writerow([r["method"], r["data"], r["model"], r["rounds"], len(r["seeds"]), *numbers])
        return out.getvalue().rstrip()
    if form == "markdown":
        lines = ["| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *body]]
        return "\n".join(lines)
    clean = [[_tex(c) for c in line] for line in [head, *body]]
    lines = [" & ".join(line) + r" \\" for line in clean]
    return "\n".join(
        [rf"\begin{{tabular}}{{{'l' * len(head)}}}", r"\hline", lines[0], r"\hline", *lines[1:], r"\hline", r"\end{tabular}"]
    )


def _tex(text: str) -> str:
    for plain, tex in {"_": r"\_", "%": r"\%", "±": r"$\pm$", "↑": r"$\uparrow$", "↓": r"$\downarrow$", "⁻³": "$^{-3}$"}.items():
        text = text.replace(plain, tex)
    return text


def show(rows: Sequence[Mapping[str, Any]]) -> None:
    """The comparison in the terminal; the best of each data set is bold."""
    head, body = _cells(rows)
    table = Table(box=None, pad_edge=False)
    for name in head:
        table.add_column(name, justify="right" if head.index(name) > 2 else "left", overflow="fold")
    for row, line in zip(rows, body, strict=True):
        for place, metric in enumerate(METRICS, start=5):
            if _best(rows, row, metric):
                line[place] = f"[bold]{line[place]}[/bold]"
        table.add_row(*line)
    Console(file=sys.stdout).print(table)


def _best(rows: Sequence[Mapping[str, Any]], row: Mapping[str, Any], metric: str) -> bool:
    rivals = [r[metric]["mean"] for r in rows if r["data"] == row["data"] and r[metric]]
    return bool(row[metric]) and len(rivals) > 1 and row[metric]["mean"] == (min if metric == "fm" else max)(rivals)
