"""Seconds of FedTKD's server modules, beside the paper's (table 6, 20 clients: identify 5.3 to 5.6, fuse .3, weigh 4).

    python benchmarks/trust.py [clients] [public samples] [classes] [--record]

Training the server's model is left out, as in the paper's `total time 2`. Prints the ratio to the paper's total.
"""

import sys
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
from measured import machine, note

from fedstill.parts.trust import centred, class_weights, client_features, fuse, trusted_clients

PAPER = {"identify": 5.611, "fuse": 0.298, "weigh": 4.069}  # 20 clients, Type-1


def timed(call: Callable[[], Any], repeats: int = 9) -> tuple[float, Any]:
    call()
    spent, found = [], None
    for _ in range(repeats):
        began = time.perf_counter()
        found = call()
        spent.append(time.perf_counter() - began)
    return median(spent), found


def report(seconds: dict[str, float]) -> None:
    for name, spent in seconds.items():
        print(f"  {name:<9} {1000 * spent:8.2f} ms   paper {PAPER[name]:.3f} s on other hardware")
    total = sum(seconds.values())
    print(f"  {'together':<9} {1000 * total:8.2f} ms   {sum(PAPER.values()) / total:,.0f} times the paper's speed")


def main(clients: int = 20, samples: int = 6000, classes: int = 10) -> None:
    about = machine()
    torch.set_num_threads(1)
    stream = torch.Generator().manual_seed(1)
    labels = torch.arange(samples) % classes
    truth = 4.0 * torch.eye(classes)[labels]
    server = truth + torch.randn(samples, classes, generator=stream)
    logits = truth + 2.0 * torch.randn(clients, samples, classes, generator=stream)
    liars = torch.arange(clients) % 2 == 1
    logits[liars] = torch.where(
        torch.rand(samples, 1, generator=stream) < 0.5, logits[liars].roll(1, -1), logits[liars]
    )

    def identify() -> list[int]:
        right = (logits.argmax(-1) == labels).double().mean(-1)
        return trusted_clients(client_features(centred(logits), centred(server), labels), right, 0.1, seed=1)[0]

    spent, trusted = timed(identify)
    print(f"{clients} clients × {samples} public samples × {classes} classes, one thread, median of 9")
    print(f"trusted: {len(trusted)} of {clients}, malicious among them: {int(liars[trusted].sum())}")
    for title, rows in (("fusing the trusted", trusted), ("fusing everyone", list(range(clients)))):
        fuse_seconds, fused = timed(partial(fuse, logits[rows], labels, 3.0, server))
        weigh_seconds, _ = timed(partial(class_weights, fused, labels, 0.8, 3.0))
        print(title)
        report({"identify": spent, "fuse": fuse_seconds, "weigh": weigh_seconds})
    note("trust", {"ms": 1000 * (spent + fuse_seconds + weigh_seconds)}, about)


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:] if word.isdigit()))
