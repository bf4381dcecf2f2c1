"""Ten active clients of 100, 1,000 and 10,000: does a round cost the same, in time and memory?

    python benchmarks/scale.py

FedAvg with the overall-clients aggregate, LeNet-5, a checkpoint every round. A client's data are made when its turn
comes, so that only what the system keeps for clients can grow. Slots may hold 16 MiB in memory, the rest goes to files.
Every K runs in a process of its own; what is printed is its cost relative to K = 100.
"""

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROUNDS, ACTIVE, SAMPLES = 40, 10, 100
CLIENTS = (100, 1_000, 10_000)


def one(clients: int) -> None:
    """Run K clients and print seconds per round and peak memory as JSON."""
    import copy

    import torch

    from fedstill.core import rng
    from fedstill.core.loop import rounds
    from fedstill.core.method import Env
    from fedstill.core.shelf import Storage
    from fedstill.core.turn import Party
    from fedstill.data.kinds import Image
    from fedstill.data.pixels import images
    from fedstill.experiment.rundir import Checkpoint, RunDir
    from fedstill.methods import FedAvg
    from fedstill.models import initial
    from fedstill.transports import Inline

    torch.set_num_threads(1)
    net = initial("lenet5", (1, 32, 32), 10, 1)

    def party(client: int) -> Party:
        x = torch.randint(
            0, 256, (SAMPLES, 1, 32, 32), generator=rng.torch_stream(1, "data", client), dtype=torch.uint8
        )
        return Party(images(x, torch.arange(SAMPLES) % 10, (0.5,), (0.3,)))

    def sample(t: int) -> list[int]:
        return [int(k) for k in rng.numpy_stream(1, "active", t).choice(clients, ACTIVE, replace=False)]

    method = FedAvg(epochs=1)
    with tempfile.TemporaryDirectory() as out:
        folder = RunDir(Path(out))
        storage = Storage(folder.path, limit=16 << 20)
        env = Env(1, (SAMPLES,) * clients, 10, Image((1, 32, 32)), lambda k, seed: copy.deepcopy(net), storage=storage)
        link = Inline(method, party, env.shelf("clients"))
        seconds, server, began = [], [], time.perf_counter()
        for done in rounds(method, env, link, sample, ROUNDS):
            folder.checkpoint(Checkpoint(done.number + 1, done.server, link.states))
            seconds.append(time.perf_counter() - began)
            server.append(done.seconds["server"])
            began = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": statistics.median(seconds), "server": statistics.median(server), "peak": peak}))


def main() -> None:
    found: dict[int, list[dict[str, float]]] = {clients: [] for clients in CLIENTS}
    for _ in range(2):  # in turn, so that a slow minute does not hit one K alone
        for clients in CLIENTS:
            done = subprocess.run([sys.executable, __file__, str(clients)], capture_output=True, text=True, check=True)
            found[clients].append(json.loads(done.stdout.splitlines()[-1]))
    best = {k: {name: min(row[name] for row in rows) for name in rows[0]} for k, rows in found.items()}
    first = best[CLIENTS[0]]
    for clients, row in best.items():
        print(
            f"K = {clients:>6}: {row['seconds']:.3f} s a round ({row['seconds'] / first['seconds']:.2f}×), "
            f"of which server {1000 * row['server']:.1f} ms; "
            f"peak memory {row['peak']:.0f} MiB ({row['peak'] / first['peak']:.2f}×)"
        )


if __name__ == "__main__":
    one(int(sys.argv[1])) if len(sys.argv) > 1 else main()
