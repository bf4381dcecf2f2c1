"""One round of FedAvg against the plain sequential PyTorch loop: same batches, same weights, how much faster?

    python benchmarks/round.py [--record]

LeNet-5, four active clients of 150, 400, 600 and 1,200 samples, ten epochs, batches of 64. The plain loop is what one
would write first: models in the default layout, ReLU then max-pool, torch's default threads, one client after another.
Ours is measured with both forms of the network, `lenet5` and `lenet5-gemm`. All are measured in turn, several times;
what is printed are ratios of medians.
"""

import statistics
import time
from contextlib import ExitStack
from itertools import pairwise

import torch
from measured import machine, note
from torch import nn

from fedstill.core.method import Env
from fedstill.core.shelf import Storage
from fedstill.data import batches, load
from fedstill.data.pixels import fitted
from fedstill.experiment.config import experiment
from fedstill.experiment.run import one_thread, transport
from fedstill.experiment.stage import stage
from fedstill.methods import FedAvg
from fedstill.parts.gather import mean

SIZES = (150, 400, 600, 1200)
METHOD = FedAvg(lr=0.01, epochs=10, batch=64)
MODELS = ("lenet5", "lenet5-gemm")


def plain_lenet() -> nn.Module:
    def block(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 5), nn.ReLU(), nn.MaxPool2d(2)]

    layers = [*block(1, 6), *block(6, 16), nn.Flatten(), nn.Linear(400, 120), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10))


def plain_round(env: Env, weights: dict[str, torch.Tensor], data: list) -> dict[str, torch.Tensor]:
    """FedAvg's round as a loop over clients, in this process."""
    trained = []
    for client, samples in enumerate(data):
        model = plain_lenet()
        model.load_state_dict(dict(zip(model.state_dict(), weights.values(), strict=True)))
        optimizer = torch.optim.SGD(model.parameters(), lr=METHOD.lr)
        images, labels = samples.inputs(), samples.y
        for index in batches(len(samples), METHOD.batch, METHOD.epochs, env.at(0, client).stream("batches")):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[index]), labels[index]).backward()
            optimizer.step()
        trained.append(dict(zip(weights, model.state_dict().values(), strict=True)))
    return mean(trained, [len(samples) for samples in data])


def main() -> None:
    about = machine()
    digits = fitted(load("mnist-5k"), (32,)).train
    digits = digits[torch.randperm(len(digits), generator=torch.Generator().manual_seed(0))]
    edges = [0]
    for size in SIZES:
        edges.append(edges[-1] + round(size / 0.8))  # a fifth of each client's samples becomes its test
    own = [(digits.x[a:b], digits.y[a:b]) for a, b in pairwise(edges)]
    default_threads = torch.get_num_threads()
    with one_thread(), ExitStack() as stack:
        ours = {}
        for model in MODELS:
            plan = experiment({"method": METHOD, "data": own, "active": 1.0, "model": model})
            ready = stage(plan, Storage())
            ours[model] = (ready.env, stack.enter_context(transport(plan, ready, ready.env.shelf("clients"))))
        env, data = ready.env, [ready.party(k).data for k in range(4)]
        assert env.sizes == SIZES, env.sizes
        server = METHOD.init_server(env)
        weights = dict(server.weights)
        times: dict[str, list[float]] = {"plain": [], **{model: [] for model in MODELS}}
        apart: dict[str, float] = {}
        for _ in range(7):
            torch.set_num_threads(default_threads)
            began = time.perf_counter()
            expected = plain_round(env, weights, data)
            times["plain"].append(time.perf_counter() - began)
            torch.set_num_threads(1)
            for model, (place, link) in ours.items():
                began = time.perf_counter()
                replies = link.exchange(place.at(0), {k: METHOD.download(place.at(0, k), server) for k in range(4)})
                found = METHOD.server(place.at(0), server, replies)
                times[model].append(time.perf_counter() - began)
                apart[model] = max(float((found.weights[n] - expected[n]).abs().max()) for n in expected)
    middle = {name: statistics.median(spent[1:]) for name, spent in times.items()}
    print(f"plain loop {middle['plain']:.3f} s a round")
    for model in MODELS:
        print(
            f"{model} {middle[model]:.3f} s: {middle['plain'] / middle[model]:.2f}× faster; "
            f"weights differ by {apart[model]:.1e}"
        )
    faster = {model: middle["plain"] / middle[model] for model in MODELS}
    note("round", {"faster": faster["lenet5"], "as products": faster["lenet5-gemm"], **middle}, about)


if __name__ == "__main__":
    main()
