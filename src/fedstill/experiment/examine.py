"""The examiner: a round's line of metrics, from what the round left."""

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np
from torch import nn

from fedstill.core.facts import Truth, derive
from fedstill.core.loop import Round
from fedstill.core.method import Env
from fedstill.core.record import Carries, carried
from fedstill.core.shelf import Shelf
from fedstill.core.turn import method_state
from fedstill.experiment.config import Experiment
from fedstill.experiment.evaluate import Marks, mean_marks
from fedstill.experiment.stage import Stage
from fedstill.parts.architectures import same_form
from fedstill.parts.backdoor import Backdoor
from fedstill.parts.learner import predict


class Examiner:
    """Makes a round's line of metrics."""

    def __init__(self, plan: Experiment, ready: Stage) -> None:
        self.plan = plan
        self.env = ready.env
        self.exam = ready.exam
        self.counts = ready.counts
        self.personal: dict[int, tuple[int, Marks, Marks]] = {}

    def row(self, done: Round) -> dict[str, Any]:
        """Everything about a round, as plain numbers, text and lists."""
        row = row_of(self.plan, self.env, done, self.scores, self.counts)
        heard = [reply.client for reply in done.replies]
        states = {client: done.states.get(client) for client in (*heard, *done.missing) if self.plan.wrappers}
        for wrapper in self.plan.wrappers:
            row["facts"].update(wrapper.facts(self.env.at(done.number), states, heard))
        return row

    def scores(self, done: Round) -> dict[str, Any]:
        """Every model's metrics."""
        env = self.env.at(done.number)
        scores: dict[str, Any] = {}
        whose = self.plan.method.architectures(env, done.server)
        for name, weights in self.plan.method.models(env, done.server).items():
            answers = self.exam.answers(self.env.module(weights, whose.get(name)))
            scores[name] = self.exam.scores(answers)
            if isinstance(self.plan.attack, Backdoor):
                scores[name]["attack_success"] = self.trapped(
                    self.env.module(weights, whose.get(name)), self.plan.attack
                )
            if self.plan.per_class:
                scores[name]["per_class"] = self.exam.per_class(answers.correct)
        if self.plan.per_class and scores:
            sent = (sent_model(self.env, reply.upload, reply.client) for reply in done.replies)
            after = [self.exam.per_class(self.exam.correct(module)) for module in sent if module is not None]
            if after:
                scores[next(iter(scores))]["per_class_after_training"] = after
        return {**scores, **self._own(done.states)}

    def trapped(self, module: nn.Module, attack: Backdoor) -> float:
        """The share of test samples of other classes that, with the trigger, are taken for the target."""
        inputs = attack.trap(self.exam.pool).inputs().to(self.env.device)
        return float((predict(module, inputs).argmax(-1) == attack.target).float().mean())

    def _own(self, states: Shelf) -> dict[str, Any]:
        """The clients' own models, examined when they have changed."""
        for client, entry in states.entries.items():
            if self.personal.get(client, (-1,))[0] == entry.version:
                continue
            weights = self.plan.method.own(self.env.at(0, client), method_state(entry.read()))
            if weights is None:
                return {}
            answers = self.exam.answers(self.env.module(weights, client))
            marks = self.exam.local_marks(answers, client), self.exam.global_marks(answers)
            self.personal[client] = (entry.version, *marks)
        if not self.personal:
            return {}
        local = [self.personal[k][1] if k in self.personal else {} for k in range(self.env.clients)]
        each = [marks for _, _, marks in self.personal.values()]
        scores = self.exam.summary(local, mean_marks(each))
        whole = {k: a for k, (_, _, marks) in self.personal.items() if (a := marks.get("accuracy")) is not None}
        scores["accuracy_median"] = median(whole.values()) if whole else None
        if self.plan.malicious:
            scores["accuracy_honest"] = _mean([a for k, a in whole.items() if k not in self.plan.malicious_clients])
        return {"personal": scores}


def sent_model(env: Env, upload: Any, client: int | None) -> nn.Module | None:
    """The model whose weights a client sent, of its own network or of the server's; a head alone is no model."""
    weights = carried(upload, Carries.WEIGHTS)
    if weights is None:
        return None
    return next((env.module(weights, of) for of in (client, None) if same_form(weights, env.form(of))), None)


def row_of(
    plan: Experiment,
    env: Env,
    done: Round,
    scores: Callable[[Round], dict[str, Any]],
    counts: np.ndarray[Any, Any] | None = None,
) -> dict[str, Any]:
    """Everything about a round, as plain numbers, text and lists.

    `scores` examines the models; `counts` are the clients' training samples by class, where they are known.
    """
    began = time.perf_counter()
    row: dict[str, Any] = {
        "round": done.number + 1,
        "active": sorted([r.client for r in done.replies] + list(done.missing)),
        "missing": {str(k): why for k, why in done.missing.items()},
        "models": {},
        "bytes": done.bytes,
        "client_seconds": {str(r.client): round(r.seconds, 4) for r in done.replies},
    }
    last = done.number + 1 == plan.rounds
    if (done.number + 1) % plan.evaluate_every == 0 or last:
        row["models"] = scores(done)
    row["facts"] = dict(plan.method.facts(env.at(done.number), done.server))
    derive(row, Truth(plan.malicious_clients, counts))
    row["seconds"] = {**done.seconds, "evaluate": time.perf_counter() - began}
    return row


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
