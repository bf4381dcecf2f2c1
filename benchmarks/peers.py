"""The same work by fedstill, by other packages for federated learning, and by the plain loop: who is faster?

    python benchmarks/peers.py tiny             one repetition of a workload, added to the record
    python benchmarks/peers.py lenet public     of several
    python benchmarks/peers.py --table          the table of all repetitions in the record, into docs/benchmarks.md

Workloads: `lenet` (LeNet-5 on Fashion-MNIST, 20 clients of 600 samples, 4 active, 10 epochs, batches of 64), `tiny`
(logistic regression on MNIST, 1,000 clients of 60 samples, 10 active, 1 epoch, batches of 10: overhead is all) and
`public` (FedMD: 10 networks of five kinds, 500 public samples). Data are found through FEDSTILL_DATA; without it
digits that come with the package are enlarged and repeated, which changes accuracies and no times.

Every contestant runs in a process of its own, one after the other, with one thread for each process; each other
package in an environment of its own under `--cache` (made when first needed, sharing this environment's torch). The
first rounds and the last, in which models are examined, do not count. Options: `--repetitions N`, `--only a,b`,
`--cache DIR`, `--threads N`, `--short` (a few rounds, to see that all work; nothing is recorded).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "contestants")]
from measured import PAGE, RECORDS, machine, newest, put, spread  # noqa: E402
from work import Work, plainly  # noqa: E402

RECORD = RECORDS / "peers.json"
BEGIN, END = "<!-- peers.py --table -->", "<!-- end of peers -->"

WORK = {
    "lenet": Work("lenet", "fashion-mnist", 20, 4, 600, epochs=10, batch=64, lr=0.01, rounds=5, warm=1),
    "tiny": Work("tiny", "mnist", 1000, 10, 60, epochs=1, batch=10, lr=0.05, rounds=120, warm=20),
    "public": Work("public", "mnist", 10, 10, 300, epochs=1, batch=64, lr=1e-3, rounds=5, warm=1, public=500),
}
ABOUT = {
    "lenet": "LeNet-5 on Fashion-MNIST: 20 clients of 600 samples, 4 active, 10 epochs, batches of 64",
    "tiny": "logistic regression on MNIST: 1,000 clients of 60 samples, 10 active, 1 epoch, batches of 10",
    "public": "FedMD on MNIST: 10 clients of 300 samples, five kinds of small CNN, 500 public samples, batches of 64",
}


@dataclass(frozen=True)
class Contestant:
    """Who takes part: a script, the package it needs, and what it can do."""

    script: str
    package: str = ""
    """As pip wants it; empty: this environment has it."""
    logits: bool = False
    """Has it FedMD?"""
    most: int = 10**6
    """Rounds after which nothing more is learnt of its speed; its accuracy is then that of so many rounds."""


CONTESTANTS = {
    "fedstill": Contestant("ours.py", logits=True),
    "plain loop": Contestant("plain.py", logits=True),
    "pfl": Contestant("pfl_research.py", "pfl==0.6.0"),
    "flwr": Contestant("flower.py", most=10),  # asks for replies every three seconds
    "fluke": Contestant("fluke_fl.py", "fluke-fl==0.8.1"),
    "flgo": Contestant("flgo_.py", "flgo==0.4.4"),
}


def arrays(name: str) -> tuple[np.ndarray[Any, Any], ...]:
    """Normalised images of 28 × 28 and labels, to train on and to test on."""
    folder = os.environ.get("FEDSTILL_DATA")
    if folder:
        from fedstill.data import load

        found = load(name)
        assert found.test is not None
        parts = (found.train, found.test)
        return tuple(a for part in parts for a in (part.inputs().numpy(), part.y.numpy()))
    from sklearn.datasets import load_digits

    print(f"FEDSTILL_DATA is not set: enlarged digits stand in for {name}")
    x, y = load_digits(return_X_y=True)
    small = np.kron(x.reshape(-1, 1, 8, 8).astype(np.float32), np.ones((1, 1, 4, 4), np.float32))[..., 2:30, 2:30]
    small = (small - small.mean()) / small.std()
    many = np.tile(np.arange(1500), 40)
    return small[many], y[many], np.tile(small[1500:], (10, 1, 1, 1)), np.tile(y[1500:], 10)


def prepared(work: Work, folder: Path) -> Path:
    """The work's data and its description, as files for the contestants."""
    x, y, x_test, y_test = arrays(work.data)
    chosen = np.random.default_rng(work.seed).permutation(len(x))[: work.clients * work.samples]
    file = folder / f"{work.name}.npz"
    np.savez(file, x=x[chosen], y=y[chosen].astype(np.int64), x_test=x_test, y_test=y_test.astype(np.int64))
    plan = folder / f"{work.name}.json"
    plan.write_text(plainly(replace(work, data=str(file))))
    return plan


def shortened(plan: Path, work: Work, most: int) -> Path:
    """The plan with at most so many rounds."""
    if work.rounds <= most:
        return plan
    fewer = plan.with_name(f"{work.name}-{most}.json")
    fewer.write_text(plainly(replace(Work(**json.loads(plan.read_text())), rounds=most, warm=2)))
    return fewer


def python_for(contestant: Contestant, cache: Path) -> str:
    """The interpreter that has what a contestant needs: this one, or that of an environment made for it."""
    if not contestant.package:
        return sys.executable
    folder = cache / contestant.package.replace("==", "-")
    interpreter = folder / "bin" / "python"
    done = folder / "installed"
    if not done.exists():
        print(f"installing {contestant.package} into {folder} …", flush=True)
        venv.create(folder, clear=True, symlinks=True)
        own = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
        (own / "shared.pth").write_text(sysconfig.get_path("purelib") + "\n")  # torch and numpy of this environment
        pinned = folder / "constraints.txt"
        pinned.write_text(f"torch=={torch.__version__.partition('+')[0]}\n")
        command = [interpreter, "-m", "pip", "install", "-q", "-c", pinned, contestant.package]
        subprocess.run(command, check=True, capture_output=True, text=True)
        done.touch()
    return str(interpreter)


def run(name: str, plan: Path, cache: Path, threads: int, limit: float = 600) -> dict[str, Any]:
    """What a contestant took, or (`error`) why it could not."""
    contestant = CONTESTANTS[name]
    try:
        python = python_for(contestant, cache)
    except (subprocess.CalledProcessError, OSError) as error:
        told = error.stderr if isinstance(error, subprocess.CalledProcessError) else str(error)
        return {"error": f"cannot be installed: {(told or '').strip().splitlines()[-1:]}"}
    env = {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "PYTHONPATH": os.pathsep.join([str(HERE / "contestants"), os.environ.get("PYTHONPATH", "")]),
        "PYTHONWARNINGS": "ignore",
    }
    command = [python, str(HERE / "contestants" / contestant.script), str(plan)]
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {limit:.0f} s"}
    last = done.stdout.strip().splitlines()[-1:]
    if done.returncode or not last or not last[0].startswith("{"):
        why = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        return {"error": f"failed: {why}"}
    found: dict[str, Any] = json.loads(last[0])
    return found


def repetition(work: Work, names: Sequence[str], cache: Path, threads: int, turn: int) -> dict[str, Any]:
    """One run of every contestant, one after the other; who begins moves on with every repetition."""
    found: dict[str, Any] = {}
    able = [name for name in names if not work.public or CONTESTANTS[name].logits]
    with tempfile.TemporaryDirectory() as folder:
        plan = prepared(work, Path(folder))
        for name in [*able[turn % len(able) :], *able[: turn % len(able)]]:
            found[name] = run(name, shortened(plan, work, CONTESTANTS[name].most), cache, threads)
            print(f"{work.name:7} {name:11} {spoken(found[name])}", flush=True)
    for name in names:
        if name not in able:
            found[name] = {"error": "has no FedMD"}
            print(f"{work.name:7} {name:11} has no FedMD")
    return found


def spoken(one: Mapping[str, Any]) -> str:
    """A run in a few words."""
    if "error" in one:
        return str(one["error"])
    return f"{1000 * one['seconds']:8.1f} ms a round, accuracy {one['accuracy']:.3f}, peak {one['peak']:.0f} MiB"


def rows(record: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The record as a table: medians over repetitions, least to most, and how many times fedstill's time.

    Of each workload the repetitions at the commit of its newest count.
    """
    yield "| work | | ms a round | fedstill is faster by | accuracy | peak MiB | repetitions |"
    yield "|---|---|---|---|---|---|---|"
    for name, about in ABOUT.items():
        known = newest([entry for entry in record if entry["work"] == name])
        for who in CONTESTANTS:
            runs = [entry["runs"][who] for entry in known if who in entry["runs"]]
            done = [one for one in runs if "error" not in one]
            if not done:
                if runs:
                    yield f"| {about} | {who} | {runs[-1]['error']} | | | | |"
                continue
            pairs = [(e["runs"]["fedstill"], e["runs"][who]) for e in known if "seconds" in e["runs"].get(who, {})]
            ratios = [other["seconds"] / ours["seconds"] for ours, other in pairs if "seconds" in ours]
            yield (
                f"| {about} | {who} | {spread([1000 * one['seconds'] for one in done], 1)} | "
                f"{'' if who == 'fedstill' else spread(ratios, 2, '×')} | "
                f"{statistics.median(one['accuracy'] for one in done):.3f}{early(done[-1], WORK[name])} | "
                f"{statistics.median(one['peak'] for one in done):.0f} | {len(done)} |"
            )


def early(one: Mapping[str, Any], work: Work) -> str:
    """After how many rounds the accuracy was reached, where they were fewer than everybody's."""
    rounds = one.get("rounds", work.rounds)
    return "" if rounds >= work.rounds else f" after {rounds} rounds"


def write_table() -> None:
    """Put the table of the record into the page, between its marks."""
    if not RECORD.exists():
        raise SystemExit(f"{RECORD}: no record yet; run a workload first, e.g. `python benchmarks/peers.py tiny`")
    whole = json.loads(RECORD.read_text())
    record = [entry for name in ABOUT for entry in newest([one for one in whole if one["work"] == name])]
    dates = sorted({f"{e['machine']['date'][:10]} at {e['machine']['commit']}" for e in record})
    loads = [e["machine"]["load"] for e in record]
    note = (
        f"Median (least–most) of the repetitions in `benchmarks/records/peers.json` ({', '.join(dates)}; "
        f"{record[-1]['machine']['cores']} cores, torch {record[-1]['machine']['torch']}; load before a repetition "
        f"{min(loads):.1f} to {max(loads):.1f})."
    )
    put(PAGE, BEGIN, END, f"{note}\n\n" + "\n".join(rows(record)))
    print("\n".join(rows(record)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", nargs="*", choices=[*WORK, []], help="lenet, tiny, public")
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--only", default=",".join(CONTESTANTS), help="who takes part")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "fedstill-peers")
    parser.add_argument("--threads", type=int, default=1, help="of each process")
    parser.add_argument("--short", action="store_true", help="a few rounds, nothing recorded")
    parser.add_argument("--table", action="store_true", help="write the table into docs/benchmarks.md")
    asked = parser.parse_args()
    names = asked.only.split(",")
    if unknown := [name for name in names if name not in CONTESTANTS]:
        parser.error(f"--only {unknown[0]}: known are {', '.join(CONTESTANTS)}")
    for turn in range(asked.repetitions):
        for chosen in asked.work:
            record = json.loads(RECORD.read_text()) if RECORD.exists() else []
            work = replace(WORK[chosen], rounds=4, warm=1) if asked.short else WORK[chosen]
            about = machine()
            runs = repetition(work, names, asked.cache, asked.threads, turn + len(record))
            if not asked.short:
                record.append({"work": chosen, "machine": about, "threads": asked.threads, "runs": runs})
                RECORD.parent.mkdir(exist_ok=True)
                RECORD.write_text(json.dumps(record, indent=1) + "\n")
    if asked.table:
        write_table()


if __name__ == "__main__":
    main()
