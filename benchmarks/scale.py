"""Ten active clients of 100 to 1,000,000: does a round cost the same, in time and memory?

    python benchmarks/scale.py [--record]

FedAvg with the overall-clients aggregate, LeNet-5, a checkpoint every round, written as a run writes it. A client's
data are made when its turn comes, so that only what the system keeps for clients can grow. Slots may hold 16 MiB in
memory, the rest goes to files. Every K runs in a process of its own, twice, in turn; what is printed is the better of
the two, and its cost relative to K = 100: by the clock, and in processor time, which a busy machine changes less.
Last, a whole run of the largest K: two samples of ten numbers each, dealt out, trained and examined for three rounds.
"""

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measured import machine, note

ROUNDS, ACTIVE, SAMPLES = 40, 10, 100
CLIENTS = (100, 1_000, 10_000, 100_000, 1_000_000)


def one(clients: int) -> None:
    """Run K clients and print seconds per round and peak memory as JSON."""
    import torch

    from fedstill.core import rng
    from fedstill.core.loop import rounds
    from fedstill.core.method import Env
    from fedstill.core.prototypes import Prototypes
    from fedstill.core.shelf import Storage
    from fedstill.core.turn import Party
    from fedstill.data.kinds import Image
    from fedstill.data.samples import Samples
    from fedstill.experiment.keeper import Keeper
    from fedstill.experiment.rundir import Checkpoint, RunDir
    from fedstill.methods import FedAvg
    from fedstill.models import initial
    from fedstill.transports import Inline

    torch.set_num_threads(1)
    build = Prototypes(lambda client: "lenet5", lambda client, seed: initial("lenet5", (1, 32, 32), 10, seed))

    def party(client: int) -> Party:
        x = torch.randint(
            0, 256, (SAMPLES, 1, 32, 32), generator=rng.torch_stream(1, "data", client), dtype=torch.uint8
        )
        return Party(Samples(x, torch.arange(SAMPLES) % 10, Image((1, 32, 32), (0.5,), (0.3,))))

    def sample(t: int) -> list[int]:
        return [int(k) for k in rng.numpy_stream(1, "active", t).choice(clients, ACTIVE, replace=False)]

    method = FedAvg(epochs=1)
    with tempfile.TemporaryDirectory() as out:
        folder = RunDir(Path(out))
        storage = Storage(folder.path, limit=16 << 20)
        env = Env(1, (SAMPLES,) * clients, 10, Image((1, 32, 32)), build, storage=storage)
        link = Inline(method, party, env.shelf("clients"))
        seconds, cpu, server = [], [], []
        began, worked = time.perf_counter(), time.process_time()
        with Keeper(folder) as keeper:
            for done in rounds(method, env, link, sample, ROUNDS):
                keeper.checkpoint(Checkpoint(done.number + 1, done.server, link.states))
                seconds.append(time.perf_counter() - began)
                cpu.append(time.process_time() - worked)
                server.append(done.seconds["server"])
                began, worked = time.perf_counter(), time.process_time()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    found = {"seconds": seconds, "cpu": cpu, "server": server}
    print(json.dumps({**{name: statistics.median(values) for name, values in found.items()}, "peak": peak}))


def whole(clients: int) -> None:
    """Run K clients from arrays to a run's folder, and print seconds and peak memory as JSON."""
    import numpy as np

    import fedstill as fs

    noise = np.random.default_rng(1)
    x = noise.normal(size=(2 * clients, 10)).astype(np.float32)
    y = x[:, :4].argmax(1)
    settings = {"clients": clients, "active": ACTIVE, "partition": "iid", "local_test": 0.5, "model": "mlp"}
    with tempfile.TemporaryDirectory() as out:
        began = time.perf_counter()
        fs.run(fs.FedAvg(epochs=1), data=(x, y), rounds=3, workers="1", out=out, **settings)
        seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"whole": seconds, "whole peak": peak}))


def apart(*words: str) -> dict[str, float]:
    """What this program, called with these words in a process of its own, prints."""
    done = subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    about = machine()
    found: dict[int, list[dict[str, float]]] = {clients: [] for clients in CLIENTS}
    for _ in range(2):  # in turn, so that a slow minute does not hit one K alone
        for clients in CLIENTS:
            found[clients].append(apart(str(clients)))
    best = {k: {name: min(row[name] for row in rows) for name in rows[0]} for k, rows in found.items()}
    first = best[CLIENTS[0]]
    for clients, row in best.items():
        print(
            f"K = {clients:>9,}: {row['seconds']:.3f} s a round ({row['seconds'] / first['seconds']:.2f}×), "
            f"of which server {1000 * row['server']:.1f} ms; processor {row['cpu']:.3f} s "
            f"({row['cpu'] / first['cpu']:.2f}×); "
            f"peak memory {row['peak']:.0f} MiB ({row['peak'] / first['peak']:.2f}×)"
        )
    numbers = {f"{name} at {k}": row[name] for k, row in best.items() for name in ("seconds", "server", "peak")}
    for title, name in (("time", "seconds"), ("cpu", "cpu")):
        numbers.update({f"{title} at {k}": row[name] / first[name] for k, row in best.items()})
    run = apart("whole", str(CLIENTS[-1]))
    print(f"a run of {CLIENTS[-1]:,} clients: {run['whole']:.0f} s for three rounds, peak {run['whole peak']:.0f} MiB")
    note("scale", {**numbers, **run}, about)


if __name__ == "__main__":
    if sys.argv[-1].isdigit():
        (whole if sys.argv[1] == "whole" else one)(int(sys.argv[-1]))
    else:
        main()
