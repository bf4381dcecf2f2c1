"""What a client's turn costs beside one of FedAvg, in processor time.

    python benchmarks/turn.py                                         FedRAD, FedKF, FedSteady and its parts
    python benchmarks/turn.py fedsteady "fedsteady generator_every=2" methods with settings of one's own

Turns alternate in one process, so that a slow moment slows all; a ratio is the median of those of neighbouring turns.
One LeNet-5 on 28×28 noise: the images do not matter to the time. Every method teaches from its second round on: what
the server would send is made from one reply.
"""

import argparse
import statistics
import time
from typing import Any

import torch
from measured import machine, note

from fedstill.core.method import Env, Method, Reply
from fedstill.data.kinds import Image
from fedstill.data.samples import Samples
from fedstill.experiment.config import experiment
from fedstill.models import initial

USUAL = ["fedrad", "fedrad relational=false", "fedkf", "fedsteady"]
USUAL += [f"fedsteady {part}=0" for part in ("gamma", "beta", "alpha", "lack")]  # each part out; nothing is lacked


def method_of(words: str, batch: int) -> Method[Any, Any, Any, Any]:
    """A method by its name and settings: `fedkf imagined_batch=0.5`."""
    name, *settings = words.split()
    own = dict(word.split("=", 1) for word in settings)
    return experiment({"method": {"name": name, "lr": 0.01, "epochs": 1, "batch": batch, **own}}).method


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("methods", nargs="*", default=USUAL)
    words.add_argument("--model", default="lenet5")
    words.add_argument("--classes", type=int, default=10)
    words.add_argument("--batch", type=int, default=64)
    words.add_argument("--steps", type=int, default=8, help="steps in a turn")
    words.add_argument("--turns", type=int, default=40, help="turns of each method")
    words.add_argument("--record", action="store_true", help="add the ratios to the record")
    asked = words.parse_args()
    about = machine()
    torch.set_num_threads(1)

    stream = torch.Generator().manual_seed(0)
    shape, samples = (1, 28, 28), asked.batch * asked.steps
    pixels = torch.randint(0, 256, (samples, *shape), dtype=torch.uint8, generator=stream)
    labels = torch.zeros(samples, dtype=torch.int64)  # one class: FedSteady does less where none lacks
    data = Samples(pixels, labels, Image(shape, (0.5,), (0.3,)))
    env = Env(
        seed=1, sizes=(samples,), classes=asked.classes, kind=data.kind,
        build=lambda client, seed: initial(asked.model, shape, asked.classes, seed or 0),
    )  # fmt: skip

    turns = {}
    for name in ["fedavg", *asked.methods]:
        method = method_of(name, asked.batch)
        server = method.init_server(env.at(0))
        state, upload = method.client(
            env.at(0, 0), method.init_client(env.at(0, 0)), method.download(env.at(0), server), data
        )
        server = method.server(env.at(0), server, [Reply(0, samples, upload)])
        turns[name] = (method, state, method.download(env.at(1), server))
    spent: dict[str, list[float]] = {name: [] for name in turns}
    for _ in range(asked.turns):
        for name, (method, state, down) in turns.items():
            began = time.process_time()
            method.client(env.at(1, 0), state, down, data)
            spent[name].append(time.process_time() - began)

    numbers = {}
    for name, seconds in spent.items():
        ratios = sorted(mine / plain for mine, plain in zip(seconds, spent["fedavg"], strict=True))
        low, high = ratios[len(ratios) // 4], ratios[-len(ratios) // 4]
        step, times = 1000 * statistics.median(seconds) / asked.steps, statistics.median(ratios)
        print(f"{name:<40} {step:6.2f} ms a step, {times:.2f} x fedavg ({low:.2f} to {high:.2f})")
        numbers[name] = times
    note("turn", numbers, about)


if __name__ == "__main__":
    main()
