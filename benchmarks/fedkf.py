"""FedKF's cost on a CPU: against the plain formulation of the same maths, and against FedAvg in the same engine.

    python benchmarks/fedkf.py [--steps 6] [--record]

Plain, with the authors' generator (`dafl`): upsample then convolve, two student passes, gradients on for the teacher,
clients one after another, torch's default threads. Ours: the same steps on the same batches through worker processes.
Then FedKF with the `light` generator against FedAvg, as in the paper and cheaper: two fifths of an imagined batch, or
half of one and a generator that learns from every second batch. Everything is measured in turn; ratios of medians are
printed.
"""

import statistics
import sys
import time
from dataclasses import replace
from typing import Any

import torch
from measured import machine, note
from torch import nn

from fedstill.core.shelf import Storage
from fedstill.data import Samples, load
from fedstill.data.pixels import fitted
from fedstill.experiment.config import experiment
from fedstill.experiment.run import one_thread, transport
from fedstill.experiment.stage import Stage, stage
from fedstill.methods import FedAvg, FedKF
from fedstill.models.generator import UpsampledConv2d
from fedstill.parts.losses import activation, class_entropy, cross_entropy, kl, one_hot

CLIENTS = 4


def upsample_then_convolve(generator: nn.Module) -> nn.Module:
    """The authors' form of the generator: the same parameters, an enlarged image, then a 3×3 convolution."""
    for name, layer in list(generator.body.named_children()):  # type: ignore[union-attr,operator]
        if isinstance(layer, UpsampledConv2d):
            plain = nn.Conv2d(layer.in_channels, layer.out_channels, 3, padding=1)
            plain.load_state_dict(layer.state_dict())
            setattr(generator.body, name, nn.Sequential(nn.Upsample(scale_factor=2), plain))
    return generator


def plain_client(method: FedKF, ready: Stage, client: int, down: Any, data: Samples) -> dict[str, torch.Tensor]:
    """ClientUpdate as one would first write it."""
    env = ready.env.at(0, client)
    student, teacher = env.module(down.weights).train(), env.module(down.teacher).eval()
    made = method.make_generator(env)
    assert made is not None
    generator = upsample_then_convolve(made).train()
    adam = torch.optim.Adam(generator.parameters(), method.adam(generator).lr)
    sgd = torch.optim.SGD(student.parameters(), method.lr)
    stream = env.stream("noise")
    for x, y in method.batches(env, data, student):
        imagined = generator(torch.randn(method.batch, method.noise, generator=stream))
        features = teacher.features(imagined)  # type: ignore[operator]
        teacher_logits = teacher.head(features)  # type: ignore[operator]
        adam.zero_grad()
        loss = (
            class_entropy(teacher_logits)
            + method.lambda1 * one_hot(teacher_logits)
            + method.lambda2 * activation(features)
        )
        loss.backward()
        adam.step()
        sgd.zero_grad()
        fancied = student(imagined.detach())
        (cross_entropy(student(x), y) + method.gamma * kl(teacher_logits.detach(), fancied)).backward()
        sgd.step()
    return dict(student.state_dict())


def staged(method: Any, workers: str = "auto") -> tuple[Any, Stage]:
    digits = fitted(load("mnist-5k"), (32,)).train
    digits = digits[torch.randperm(len(digits), generator=torch.Generator().manual_seed(0))]
    own = [(digits.x[k * 800 : (k + 1) * 800], digits.y[k * 800 : (k + 1) * 800]) for k in range(CLIENTS)]
    plan = experiment({"method": method, "data": own, "active": 1.0, "model": "lenet5", "workers": workers})
    return plan, stage(plan, Storage())


def main() -> None:
    about = machine()
    steps = int(sys.argv[sys.argv.index("--steps") + 1]) if "--steps" in sys.argv else 6
    threads = torch.get_num_threads()
    full = FedKF(generator="dafl", local_steps=steps)
    with one_thread():
        plan, ready = staged(full)
        env = ready.env
        server = full.init_server(env)
        downs = {k: full.download(env.at(0, k), server) for k in range(CLIENTS)}
        data = [ready.party(k).data for k in range(CLIENTS)]
        times: dict[str, list[float]] = {"plain": [], "ours": []}
        for _ in range(3):
            torch.set_num_threads(threads)
            began = time.perf_counter()
            expected = [plain_client(full, ready, k, downs[k], data[k]) for k in range(CLIENTS)]
            times["plain"].append(time.perf_counter() - began)
            torch.set_num_threads(1)
            with transport(plan, ready, env.shelf("clients")) as link:
                began = time.perf_counter()
                replies = link.exchange(env.at(0), downs)
                times["ours"].append(time.perf_counter() - began)
        apart = max(
            float((r.upload.weights[n] - w[n]).abs().max()) for r, w in zip(replies, expected, strict=True) for n in w
        )
        plain, ours = (statistics.median(times[n]) / (CLIENTS * steps) for n in ("plain", "ours"))
        print(
            f"dafl: plain {1000 * plain:.0f} ms a step, fedstill {1000 * ours:.0f} ms: {plain / ours:.2f}× faster; "
            f"weights differ by {apart:.1e}"
        )
        found = {}
        part = FedKF(imagined_batch=0.4)
        both = FedKF(imagined_batch=0.5, generator_every=2)
        for name, method in {"fedavg": FedAvg(), "fedkf": FedKF(), "part": part, "both": both}.items():
            found[name] = staged(replace(method, local_steps=10 * steps))
        times = {name: [] for name in found}
        links = {name: transport(p, r, r.env.shelf("clients")) for name, (p, r) in found.items()}
        opened = {name: link.__enter__() for name, link in links.items()}
        for _ in range(5):
            for name, (light, there) in found.items():
                server = light.method.init_server(there.env)
                downs = {k: light.method.download(there.env.at(0, k), server) for k in range(CLIENTS)}
                began = time.perf_counter()
                opened[name].exchange(there.env.at(0), downs)
                times[name].append(time.perf_counter() - began)
        for link in links.values():
            link.__exit__(None, None, None)
    middle = {name: statistics.median(spent[1:]) for name, spent in times.items()}
    titles = {"against fedavg": "fedkf", "part of a batch": "part", "cheaper": "both"}
    ratios = {title: middle[name] / middle["fedavg"] for title, name in titles.items()}
    print(
        f"light: FedKF takes {ratios['against fedavg']:.2f}× the time of FedAvg, step for step; "
        f"with imagined_batch = 0.4 {ratios['part of a batch']:.2f}×, "
        f"with 0.5 and generator_every = 2 {ratios['cheaper']:.2f}×"
    )
    note("fedkf", {"faster": plain / ours, "apart": apart, **ratios}, about)


if __name__ == "__main__":
    main()
