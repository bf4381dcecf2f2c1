"""What DaFKD's weights α̂ are worth: the clients' ensemble with them and with equal ones, and the students of both.

    python benchmarks/dafkd.py [--rounds 24] [--seed 1] [--data fashion-mnist]

Every `--every` rounds of one run, both ensembles are asked about the test images, which only this script may see, and
the round's average is distilled from each of them on the same generated samples, in one pass and in ten.
"""

import argparse
import statistics
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedstill.core.loop import Round, rounds
from fedstill.core.shelf import Storage
from fedstill.experiment.config import experiment
from fedstill.experiment.run import active, transport
from fedstill.experiment.stage import Stage, stage
from fedstill.methods import DaFKD
from fedstill.parts.distil import Lesson


def compared(method: DaFKD, ready: Stage, done: Round) -> dict[str, float]:
    """Accuracies after one round, by what was asked."""
    env, exam = ready.env.at(done.number), ready.exam

    def right(weights: Any) -> float:
        return float(exam.accuracy(exam.correct(env.module(weights))) or 0.0)

    def share(targets: Tensor) -> float:
        return float((targets.argmax(-1).cpu() == exam.pool.y).double().mean())

    uploads = [reply.upload for reply in done.replies]
    generated = method.samples(env, done.server.generator, method.distill_samples)
    found = {"average": right(done.server.average)}
    for name, way in (("α̂", method), ("equal", replace(method, correlation=False))):
        found[f"ensemble, {name}"] = share(way.ensemble(env, uploads, exam.images)[0])
        lesson = Lesson(generated, way.ensemble(env, uploads, generated)[0])
        for passes in (1, 10):
            student = replace(way, distill_epochs=passes).distilled(env, done.server.average, lesson)
            found[f"{passes} passes, {name}"] = right(student)
    return found


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    words.add_argument("--rounds", type=int, default=24)
    words.add_argument("--every", type=int, default=3)
    words.add_argument("--seed", type=int, default=1)
    words.add_argument("--data", default="fashion-mnist")
    asked = words.parse_args()
    method = DaFKD(stable=True, generator="light", generator_lr=0.002, distill_epochs=10)
    plan = experiment({
        "method": method, "data": asked.data, "model": "lenet5", "clients": 20, "active": 0.4, "alpha": 0.1,
        "local_test": 0.0, "rounds": asked.rounds, "seed": asked.seed, "workers": "inline",
    })  # fmt: skip
    torch.set_num_threads(1)
    ready = stage(plan, Storage())
    rows = []
    with transport(plan, ready, ready.env.shelf("clients")) as link:
        for done in rounds(method, ready.env, link, lambda t: active(plan, t), asked.rounds):
            if (done.number + 1) % asked.every == 0:
                rows.append(compared(method, ready, done))
                told = "  ".join(f"{name} {100 * value:.1f}" for name, value in rows[-1].items())
                print(f"round {done.number + 1}: {told}", flush=True)
    for name in rows[0] if rows else ():
        print(f"{name:<18} {100 * statistics.mean(row[name] for row in rows):5.1f}")


if __name__ == "__main__":
    main()
