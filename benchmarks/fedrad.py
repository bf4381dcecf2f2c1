"""What a step of FedRAD costs beside one of FedAvg: two models are trained, and pairwise distances are compared.

    python benchmarks/fedrad.py            (about 20 s; prints the ratio, fails above 2.3)

Turns of both methods alternate in one process, so that a slow moment slows both; the ratio is the median of
those of neighbouring turns. One LeNet-5 on 28×28 noise: the images do not matter to the time.
"""

import argparse
import statistics
import sys
import time

import torch

from fedstill.core.method import Env
from fedstill.data.pixels import images
from fedstill.methods import FedAvg, FedRAD
from fedstill.models import initial
from fedstill.parts.averaging import Broadcast


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--model", default="lenet5")
    words.add_argument("--classes", type=int, default=10)
    words.add_argument("--batch", type=int, default=128)
    words.add_argument("--steps", type=int, default=5, help="steps in a turn")
    words.add_argument("--turns", type=int, default=80, help="turns of each method")
    words.add_argument("--limit", type=float, default=2.3)
    asked = words.parse_args()
    torch.set_num_threads(1)

    stream = torch.Generator().manual_seed(0)
    shape, samples = (1, 28, 28), asked.batch * asked.steps
    pixels = torch.randint(0, 256, (samples, *shape), dtype=torch.uint8, generator=stream)
    data = images(pixels, torch.randint(0, asked.classes, (samples,), generator=stream), (0.5,), (0.3,))
    env = Env(
        seed=1, sizes=(samples,), classes=asked.classes, kind=data.kind,
        build=lambda client, seed: initial(asked.model, shape, asked.classes, seed or 0),
    ).at(0, 0)  # fmt: skip

    pace = {"lr": 0.01, "epochs": 1, "batch": asked.batch}
    methods = {"fedavg": FedAvg(**pace), "fedrad": FedRAD(**pace), "no L_RKD": FedRAD(**pace, relational=False)}
    down = Broadcast(env.initial())
    spent: dict[str, list[float]] = {name: [] for name in methods}
    for number in range(asked.turns + 2):
        for name, method in methods.items():
            began = time.perf_counter()
            method.client(env, method.init_client(env), down, data)
            if number >= 2:  # the first two warm up
                spent[name].append(time.perf_counter() - began)

    for name, seconds in spent.items():
        print(f"{name:<9} {1000 * statistics.median(seconds) / asked.steps:7.3f} ms a step")
    ratio, single = (
        statistics.median(mine / plain for mine, plain in zip(spent[name], spent["fedavg"], strict=True))
        for name in ("fedrad", "no L_RKD")
    )
    print(f"fedrad / fedavg = {ratio:.2f} (limit {asked.limit}; without L_RKD {single:.2f})")
    sys.exit(0 if ratio <= asked.limit else 1)


if __name__ == "__main__":
    main()
