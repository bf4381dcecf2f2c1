"""What a round over three idle sites costs beyond the training itself: hub, three sites and deploy on this machine.

    python benchmarks/deploy.py [rounds] [--record]

Prints seconds a round for training and evaluation, with TLS and keys, and fails above five seconds.
"""

import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from measured import machine, note

BUDGET = 5.0
FEDSTILL = [sys.executable, "-c", "from fedstill.cli import main; main()"]


def started(words: list[str], log: Path, until: str) -> subprocess.Popen[bytes]:
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*FEDSTILL, *words],
            stdout=file,
            stderr=file,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    ends = time.monotonic() + 120
    while until not in log.read_text():
        if process.poll() is not None or time.monotonic() > ends:
            raise SystemExit(f"did not start: {log.read_text()[-2000:]}")
        time.sleep(0.1)
    return process


def main() -> None:
    about = machine()
    rounds = next((int(word) for word in sys.argv[1:] if word.isdigit()), 20)
    from fedstill.flower.flwr_env import prepare

    folder = Path(tempfile.mkdtemp(prefix="fedstill-bench-"))
    prepare(folder / "flwr")
    from fedstill.data import load
    from fedstill.experiment.config import experiment
    from fedstill.experiment.rundir import RunDir
    from fedstill.flower.control import HubClient, deploy
    from fedstill.flower.enrolment import deployable
    from fedstill.flower.keys import make_certificates, make_key

    digits = load("digits").train
    make_certificates(folder, ["127.0.0.1"])
    names = ["site-a", "site-b", "site-c"]
    for k, name in enumerate(names):
        make_key(folder / name)
        np.savez(folder / f"{name}.npz", x_train=digits.x[k::3].numpy(), y_train=digits.y[k::3].numpy())
    port = 20000 + secrets.randbelow(20000)
    address, processes = f"127.0.0.1:{port}", []
    try:
        allow = [word for name in names for word in ("--allow", str(folder / f"{name}.pub"))]
        tls = [
            "--cert",
            str(folder / "server.pem"),
            "--key",
            str(folder / "server.key"),
            "--ca",
            str(folder / "ca.crt"),
        ]
        hub = ["hub", "--host", "127.0.0.1", "--port", str(port), "--state", str(folder / "hub"), *tls, *allow]
        processes.append(started(hub, folder / "hub.log", "hub ready"))
        for name in names:
            words = ["site", "--hub", address, "--ca", str(folder / "ca.crt"), "--key", str(folder / name)]
            words += ["--data", str(folder / f"{name}.npz"), "--state", str(folder / f"state-{name}")]
            processes.append(started(words, folder / f"{name}.log", "connected to"))
        plan = experiment({"method": {"name": "fedavg", "epochs": 1}, "clients": 3, "active": 1.0, "rounds": rounds})
        with HubClient(address, folder / "ca.crt", False, (folder / "hub" / "token").read_text()) as line:
            began = time.perf_counter()
            home = deploy(line, "bench", deployable(plan).plain(), folder / "home", 60.0, lambda told: None)
            whole = time.perf_counter() - began
        report(RunDir.open(home).rows(), whole, about)
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(20)


def report(rows: list[dict[str, Any]], whole: float, about: dict[str, Any]) -> None:
    clients = [row["seconds"]["clients"] - max(row["client_seconds"].values()) for row in rows]
    exams = [row["seconds"]["evaluate"] for row in rows]
    both = [a + b for a, b in zip(clients, exams, strict=True)]
    for title, values in (("turns", clients), ("exams", exams), ("both", both)):
        print(
            f"{title:<6} median {statistics.median(values):.2f} s   worst {max(values):.2f} s  a round beyond training"
        )
    print(f"{len(rows)} rounds in {whole:.1f} s, from `deploy` to the run folder at home")
    note("deploy", {"median": statistics.median(both), "worst": max(both), "turns": statistics.median(clients)}, about)
    if statistics.median(both) > BUDGET:
        raise SystemExit(f"more than {BUDGET:g} s a round")


if __name__ == "__main__":
    main()
