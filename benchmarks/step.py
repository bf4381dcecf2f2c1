"""Where the time of one training step goes, by kind of operation: LeNet-5, ResNet-8, a small CNN, an MLP.

    python benchmarks/step.py [--steps 30]

One thread, batches of 64. Milliseconds are processor time. Shares are by the clock, under torch's profiler; `rest` is
what a step takes besides operations: Python, autograd's own work, and the profiler's.
"""

import sys
import time

import torch
from torch.profiler import ProfilerActivity, profile

from fedstill.core.errors import UsageError
from fedstill.data.kinds import Image
from fedstill.models import initial
from fedstill.parts.learner import Learner
from fedstill.parts.losses import cross_entropy
from fedstill.parts.sgd import Sgd

MODELS = {
    "lenet5": (1, 32, 32),
    "lenet5-gemm": (1, 32, 32),
    "resnet8": (3, 32, 32),
    "cnn1": (1, 28, 28),
    "mlp": (1, 28, 28),
}
KINDS = {
    "convolutions": ("conv",),
    "pooling": ("pool",),
    "normalisation": ("norm",),
    "matrix products": ("mm", "linear"),
    "update": ("_foreach",),
    "elementwise and copies": ("",),
}
"""Kinds of operations, by what their names hold; the first that fits counts."""


def kind_of(operation: str) -> str:
    """The kind of an operation.

    >>> kind_of("aten::mkldnn_convolution"), kind_of("aten::addmm"), kind_of("aten::_foreach_add_")
    ('convolutions', 'matrix products', 'update')
    """
    return next(kind for kind, parts in KINDS.items() if any(part in operation for part in parts))


def measured(name: str, steps: int) -> tuple[float, dict[str, float]]:
    """Milliseconds of processor time of a step, and the share of each kind of operation in it."""
    shape = MODELS[name]
    module = initial(name, Image(shape), 10, 1).train()
    learner = Learner(module, Sgd(module.parameters(), 0.01))
    stream = torch.Generator().manual_seed(0)
    x, y = torch.randn(64, *shape, generator=stream), torch.arange(64) % 10

    def step() -> None:
        learner.step(cross_entropy(learner(x), y))

    for _ in range(5):
        step()
    began = time.process_time()
    for _ in range(steps):
        step()
    whole = (time.process_time() - began) / steps
    with profile(activities=[ProfilerActivity.CPU]) as watched:
        began = time.perf_counter()
        for _ in range(steps):
            step()
        clock = (time.perf_counter() - began) / steps
    spent: dict[str, float] = dict.fromkeys(KINDS, 0.0)
    for row in watched.key_averages():
        if row.key.startswith("aten::"):
            spent[kind_of(row.key)] += row.self_cpu_time_total / 1e6 / steps
    shares = {kind: seconds / clock for kind, seconds in spent.items()}
    return 1000 * whole, {**shares, "rest": 1 - sum(shares.values())}


def main() -> None:
    steps = int(sys.argv[sys.argv.index("--steps") + 1]) if "--steps" in sys.argv else 30
    torch.set_num_threads(1)
    for name in MODELS:
        try:
            whole, shares = measured(name, steps)
        except UsageError as problem:
            print(f"{name}: {problem}")
            continue
        told = ", ".join(f"{kind} {share:.0%}" for kind, share in shares.items() if abs(share) >= 0.005)
        print(f"{name}: {whole:.2f} ms a step; {told}")


if __name__ == "__main__":
    main()
