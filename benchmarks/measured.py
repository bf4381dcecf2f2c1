"""Records of what the benchmarks saw, and the table that the page makes of them.

    python benchmarks/round.py --record         measure, and add it to benchmarks/records/round.json
    python benchmarks/measured.py               the tables of all records, into docs/benchmarks.md and docs/privacy.md

What stands in the table was measured at the commit of the newest entry: the median of its repetitions, least to most.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RECORDS = HERE / "records"
PAGE = HERE.parent / "docs" / "benchmarks.md"
BEGIN, END = "<!-- measured.py -->", "<!-- end of measured -->"
PRIVACY = HERE.parent / "docs" / "privacy.md"
AUDIT = "<!-- measured.py: audit -->"


@dataclass(frozen=True)
class Bench:
    """A benchmark: what it measures, and how each of its numbers is told (a format with `{}`, and digits)."""

    about: str
    numbers: Mapping[str, tuple[str, int]]


BENCHES = {
    "round": Bench(
        "a round of FedAvg (LeNet-5, clients of 150, 400, 600, 1,200 samples, 10 epochs, batches of 64) against the "
        "plain sequential PyTorch loop",
        {"faster": ("`lenet5`: {}× faster", 2), "as products": ("`lenet5-gemm`: {}×", 2)},
    ),
    "overlap": Bench(
        "rounds that are examined while the next one trains against rounds examined before it; two workers",
        {
            "three equal": ("three equal clients: {}× faster", 2),
            "four that differ": ("four that differ: {}×", 2),
            "four equal": ("four equal ones: {}×", 2),
        },
    ),
    "scale": Bench(
        "10 active of K clients, T1 and a checkpoint every round; time and memory relative to K = 100",
        {
            "seconds at 100": ("{} s a round at K = 100", 3),
            "time at 1000": ("K = 1,000: {}×", 2),
            "time at 10000": ("10,000: {}×", 2),
            "time at 100000": ("100,000: {}×", 2),
            "time at 1000000": ("1,000,000: {}×", 2),
            "cpu at 1000000": ("{}× in processor time", 2),
            "peak at 1000000": ("{} MiB", 0),
            "whole": ("a whole run of 1,000,000, dealt, trained and examined for three rounds: {} s", 0),
            "whole peak": ("{} MiB", 0),
        },
    ),
    "fedkf": Bench(
        "FedKF with the authors' generator against the plain formulation; FedKF (light, 16 channels) against FedAvg, "
        "step for step; the same with `imagined_batch = 0.4`, and with 0.5 and `generator_every = 2`",
        {
            "faster": ("{}× faster", 2),
            "against fedavg": ("{}× the time of FedAvg", 2),
            "part of a batch": ("with two fifths of a batch imagined {}×", 2),
            "cheaper": ("with both settings {}×", 2),
        },
    ),
    "turn": Bench(
        "a client's turn by several methods against one of FedAvg, LeNet-5, processor time",
        {
            "fedrad": ("FedRAD {}×", 1),
            "fedkf": ("FedKF {}×", 1),
            "fedsteady": ("FedSteady {}×", 1),
            "fedsteady gamma=0": ("without imagination {}×", 1),
            "fedsteady beta=0": ("without teaching on real samples {}×", 1),
            "fedsteady alpha=0": ("without the bend {}×", 1),
            "fedsteady lack=0": ("where a client lacks nothing {}×", 1),
        },
    ),
    "trust": Bench(
        "identify, fuse and weigh for 20 clients × 6,000 public samples × 10 classes", {"ms": ("{} ms in all", 0)}
    ),
    "secrecy": Bench(
        "secure sums of 10 clients with 61,706 weights each (LeNet-5), one lost, against plain sums and training",
        {
            "bytes": ("{} times the bytes of plain single precision", 3),
            "time": ("a client takes {} times as long as an epoch of LeNet-5 on 500 samples", 2),
            "error": ("the sum is off by {} times the bound at most", 2),
        },
    ),
    "message": Bench(
        "what a client's turn costs beyond training, both messages, 10 clients: in this process, in two workers, on "
        "Flower's simulation over Ray",
        {
            "inline, mlp": ("`mlp`: {} ms", 2),
            "workers, mlp": ("{} ms", 2),
            "ray, mlp": ("{} ms", 0),
            "inline, lenet5": ("LeNet-5: {} ms", 2),
            "workers, lenet5": ("{} ms", 2),
            "ray, lenet5": ("{} ms", 0),
        },
    ),
    "deploy": Bench(
        "what a round over three sites on loopback costs beyond training, with TLS, keys and exams",
        {"median": ("median {} s", 2), "worst": ("worst {} s", 2)},
    ),
}


def machine() -> dict[str, Any]:
    """Where it was measured, and how busy the machine was with other things."""
    import torch

    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True)
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "commit": commit.stdout.strip(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "data": "real" if os.environ.get("FEDSTILL_DATA") else "stand-in",
    }


def spread(values: Sequence[float], digits: int, unit: str = "") -> str:
    """Median, and least to most where there are several.

    >>> spread([1.0, 3.0, 2.0], 1), spread([2.0], 1, "×"), spread([], 1)
    ('2.0 (1.0–3.0)', '2.0×', '–')
    """
    if not values:
        return "–"
    middle = f"{statistics.median(values):.{digits}f}{unit}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def note(name: str, numbers: Mapping[str, float], about: Mapping[str, Any]) -> None:
    """Add what a benchmark saw to its record, where the command line asks for it; `about` is `machine()` before it."""
    keep(name, {"machine": about, "numbers": numbers})


def keep(name: str, entry: Mapping[str, Any]) -> None:
    """Add an entry to a benchmark's record, where the command line asks for it."""
    if "--record" not in sys.argv:
        return
    file = RECORDS / f"{name}.json"
    record = json.loads(file.read_text()) if file.exists() else []
    RECORDS.mkdir(exist_ok=True)
    file.write_text(json.dumps([*record, entry], indent=1) + "\n")


def newest(record: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The entries that were measured at the commit of the last one."""
    return [entry for entry in record if entry["machine"]["commit"] == record[-1]["machine"]["commit"]]


def rows() -> Iterator[str]:
    """The table: a line for each benchmark."""
    yield "| command | what is measured | seen | repetitions, commit, load before |"
    yield "|---|---|---|---|"
    for name, bench in BENCHES.items():
        file = RECORDS / f"{name}.json"
        known = newest(json.loads(file.read_text())) if file.exists() else []
        yield f"| `python benchmarks/{name}.py` | {bench.about} | {seen(bench, known)} | {when(known)} |"


def seen(bench: Bench, known: Sequence[Mapping[str, Any]]) -> str:
    """All numbers of a benchmark in words, each over its repetitions."""
    told = []
    for number, (words, digits) in bench.numbers.items():
        values = [entry["numbers"][number] for entry in known if number in entry["numbers"]]
        if values:
            told.append(words.format(spread(values, digits)))
    return "; ".join(told) or "no repetition is on record yet"


def when(known: Sequence[Mapping[str, Any]]) -> str:
    """How often, at which commit, and how busy the machine was."""
    if not known:
        return ""
    loads = [entry["machine"]["load"] for entry in known if entry["machine"].get("load") is not None]
    busy = f"{min(loads):.1f}–{max(loads):.1f}" if loads else "not noted"
    return f"{len(known)} at {known[-1]['machine']['commit']}, {busy}"


def audit_rows() -> Iterator[str]:
    """What an audit learnt of methods with and without privacy: a line for each method and target."""
    newest_entry = json.loads((RECORDS / "audit.json").read_text())[-1]
    yield f"Seed {newest_entry['seed']}, at {newest_entry['machine']['commit']}."
    yield ""
    yield "| method | attacked | AUC | AUC, ε = 1 |"
    yield "|---|---|---|---|"
    for row in newest_entry["rows"]:
        yield f"| {row['method']} | {row['target']} | {row['auc']} | {row['private']} |"


def put(page: Path, begin: str, end: str, text: str) -> None:
    """Write a text into a page, between two marks."""
    before, _, rest = page.read_text().partition(begin)
    _, _, after = rest.partition(end)
    page.write_text(f"{before}{begin}\n{text}\n{end}{after}")


if __name__ == "__main__":
    put(PAGE, BEGIN, END, "\n".join(rows()))
    put(PRIVACY, AUDIT, END, "\n".join(audit_rows()))
    print("\n".join(rows()))
