"""A student taught from noise alone (FedKF IV-D, table IV, figures 2 and 3): one teacher on all data, then no data.

The teacher is a run of FedAvg with one client, so that it is resumable like any other; `rounds` counts epochs, first
the teacher's, then the student's. The student and the generator learn from that teacher as a client does whose method
imagines samples, but without a loss on samples of its own: it has none. A student of texts has the teacher's embedding
of words, as imagined texts are embeddings. With `generator = "noise"` the student sees plain noise: the yardstick.
"""

import hashlib
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedstill.core import record, rng
from fedstill.core.errors import RunError, UsageError
from fedstill.core.method import methods
from fedstill.core.record import State
from fedstill.core.value import by_field, plain
from fedstill.experiment.config import Experiment, experiment
from fedstill.experiment.drive import one_thread
from fedstill.experiment.ready import trained
from fedstill.experiment.records import Record, record_id, record_of, tensors_digest
from fedstill.experiment.rundir import RunDir
from fedstill.experiment.stage import Stage, stage
from fedstill.methods.fedavg import FedAvg
from fedstill.models.text import TextClassifier
from fedstill.parts.imagination import Imagining
from fedstill.parts.learner import Learner, LocalTraining, frozen
from fedstill.parts.losses import kl


@record.record
class Taught:
    """The outcome: the student's accuracy on the global test after every epoch, student and generator."""

    accuracies: tuple[float, ...]
    student: State
    generator: State


def teacher_plan(plan: Experiment) -> Experiment:
    """The run that makes the teacher: FedAvg with the same optimiser, one client that has everything."""
    same = by_field(_imagining(plan), LocalTraining)
    return replace(plan, method=FedAvg(**{**same, "epochs": 1, "local_steps": None}), clients=1, active=1.0)


def _imagining(plan: Experiment) -> Imagining:
    """The experiment's method, if its clients imagine samples: no other can teach without data."""
    if not isinstance(plan.method, Imagining):
        able = [name for name in methods if issubclass(methods[name], Imagining)]
        raise UsageError(f"method = {plan.title}: a student without data is taught by one of {', '.join(able)}")
    return plan.method


def taught(plan: Experiment, teacher: Path) -> Taught:
    """The student of the teacher in this run's folder; kept there, and not taught again."""
    settings = json.dumps([plain(plan.method), plan.rounds], sort_keys=True)
    file = teacher / f"student-{hashlib.sha256(settings.encode()).hexdigest()[:10]}.safetensors"
    if file.exists():
        kept = record.load(file)
        assert isinstance(kept, Taught)
        return kept
    with one_thread():
        made = _teach(plan, teacher)
    record.save(file, made)
    return made


def student_record(plan: Experiment, teacher: Path, cell: str = "") -> Record:
    """The record of a student of the teacher in this folder; it is taught if it was not yet."""
    made = taught(plan, teacher)
    accuracies = list(made.accuracies)
    return replace(
        record_of(teacher, cell),
        id=record_id(plan),
        experiment=plan.plain(),
        rounds=list(range(1, len(accuracies) + 1)),
        curves={"student": {"accuracy": accuracies}},
        per_client={},
        facts={},
        seconds={},
        cpu_seconds=None,
        modules={},
        bytes={"down": {}, "up": {}},
        bits=hashlib.sha256(json.dumps(accuracies).encode()).hexdigest()[:16],
        weights=tensors_digest(made),
    )


def _teacher(path: Path) -> tuple[nn.Module, Stage]:
    """The model that FedAvg's run in this folder made, and that run's stage."""
    folder = RunDir.open(path)
    plan = experiment(folder.read("experiment.json"))
    ready = stage(plan, folder.storage)
    checkpoint, _ = folder.latest()
    if checkpoint is None:
        raise RunError(f"{path}: no whole checkpoint there")
    weights, of, _ = trained(plan, ready.env, checkpoint, "active")
    return ready.env.module(weights, of).eval(), ready


def _teach(plan: Experiment, path: Path) -> Taught:
    method = _imagining(plan)
    module, ready = _teacher(path)
    teacher: Any = frozen(module.to(ready.env.device))
    first = ready.env.at(0, 0)
    student = ready.env.build(None, rng.key(plan.seed, "student")).to(ready.env.device)
    if isinstance(student, TextClassifier):  # imagined texts are embeddings: its words must mean what the teacher's do
        student.embedding.load_state_dict(teacher.embedding.state_dict())
    made = method.make_generator(first)
    generator = None if made is None else Learner(made.to(ready.env.device).train(), method.adam(made))
    stream, steps = first.stream("noise"), math.ceil(ready.env.sizes[0] / method.batch)
    accuracies = []
    for epoch in range(plan.rounds):
        learner = method.learner(ready.env.at(epoch, 0), student)
        for number in range(steps):
            lesson = method.lesson(first, teacher, generator, stream, number)
            if generator is not None and lesson.learns:
                generator.step(
                    method.generator_loss(first, lesson.logits, lesson.features, learner, lesson.imagined)
                )  # (5)
            learner.step(kl(lesson.logits.detach(), learner(lesson.imagined.detach())))  # (6)
        accuracies.append(ready.exam.accuracy(ready.exam.correct(student)) or 0.0)
    return Taught(tuple(accuracies), learner.weights, {} if generator is None else generator.weights)


def mean_images(plan: Experiment, path: Path, samples: int = 4096) -> tuple[Tensor, Tensor, Stage]:
    """The mean image of every class, real and imagined (as the teacher sees them), in pixels from 0 to 1."""
    method = _imagining(plan)
    kept = taught(plan, path)
    module, ready = _teacher(path)
    generator = method.make_generator(ready.env.at(0, 0))
    if generator is None:
        raise UsageError(f"{plan.title}: generator = 'noise' imagines no images")
    generator.load_state_dict(kept.generator)
    stream = ready.env.at(0, 0).stream("gallery")
    with torch.no_grad(), one_thread():
        noise = torch.split(torch.randn(samples, method.noise, generator=stream), 256)
        imagined = torch.cat([generator.train()(z) for z in noise])  # its BatchNorm saw batches, not a running mean
        labels = torch.cat([module.eval()(x).argmax(-1) for x in torch.split(imagined, 256)])
    data = ready.party(0).data
    return _means(ready, data.inputs(), data.y), _means(ready, imagined, labels), ready


def _means(ready: Stage, images: Tensor, labels: Tensor) -> Tensor:
    kind, classes = ready.env.kind, range(ready.env.classes)
    blank = torch.zeros(images.shape[1:])
    return torch.stack([kind.shown(images[labels == c].mean(0)) if (labels == c).any() else blank for c in classes])
