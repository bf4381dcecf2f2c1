"""A site's own half: it reads a question, does what it asks with its own data, and writes the answer.

Data, models and states stay here. What a site keeps between rounds is written to its state folder after every turn,
one file a round; a turn starts from the newest file of an earlier round, so a round that is repeated (the hub was
restarted) gives the same answer again. Whatever the hub asks, the site's policy is asked first, and every question is
entered in its audit log.
"""

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError

from fedstill.core import record
from fedstill.core.errors import DataError, FedstillError, UsageError
from fedstill.core.method import Env, Method
from fedstill.core.registry import importing_only
from fedstill.core.shelf import Storage
from fedstill.core.turn import Party, leaving, ledger, method_state, turn
from fedstill.data.own import Own, read_own
from fedstill.data.portions import Portions
from fedstill.data.reading import Reading
from fedstill.data.samples import Samples
from fedstill.data.summary import summary
from fedstill.experiment.config import Experiment, experiment
from fedstill.experiment.evaluate import Exam
from fedstill.experiment.setting import Setting
from fedstill.flower.audit import AuditLog
from fedstill.flower.consent import consented
from fedstill.flower.enrolment import checksum, deployable, public_set, read_setting
from fedstill.flower.identity import fingerprint, secret_for, secret_of
from fedstill.flower.messages import (
    FORMAT,
    DataSummary,
    Enrol,
    Enrolled,
    ExamRequest,
    Marks,
    Models,
    Question,
    Refusal,
    RoundQuestion,
    SumAnswer,
    SumQuestion,
    Task,
    Work,
    first_fault,
    question,
    readable,
)
from fedstill.flower.once import only_once
from fedstill.flower.policy import Policy
from fedstill.flower.runbook import RunBook, RunFolder, States, agreed_part, digest, new_book
from fedstill.flower.spending import Spending
from fedstill.flower.sums_site import Meetings, sums_of

Answered = tuple[bytes, bytes | None]
"""An answer's head, and its body where it has one."""


@dataclass(frozen=True)
class Scene:
    """What a site derives from a setting, once."""

    setting: Setting
    client: int
    plan: Experiment
    env: Env
    train: Samples
    exam: Exam

    @property
    def method(self) -> Method[Any, Any, Any, Any]:
        """The method."""
        return self.plan.method


class Site:
    """One site: its name, its data, its model, its state folder and its policy."""

    def __init__(
        self,
        name: str,
        data: str,
        state: Path,
        model: str = "auto",
        public: str | None = None,
        device: str = "cpu",
        policy: Policy | None = None,
        report: Callable[[str], None] = lambda text: None,
        reading: Reading | None = None,
        key: Path | None = None,
    ) -> None:
        self.name = name
        self.own: Own = read_own(data, reading)
        self.state = state
        self.model = model
        self.public = public
        self.device = device
        self.policy = policy or Policy()
        self.report = report
        self.audit = AuditLog(state / "audit.jsonl")
        self.fingerprint = fingerprint(self.own, secret_of(state))
        self.meetings = Meetings(key, self.policy.partners)
        self.spending = Spending(state, self.policy)
        self.scenes: dict[str, Scene] = {}
        warm_up()

    def answer(self, head: bytes, body: bytes | None = None) -> Answered:
        """The answer to a question; whatever goes wrong becomes a refusal that says so."""
        asked: Question | None = None
        before = torch.get_num_threads()
        torch.set_num_threads(1)  # as in the simulator: the same bits
        try:
            asked = question(head)
            if body is not None and len(body) > self.policy.turn_bytes:
                raise FedstillError(f"a body of {len(body)} bytes: this site's policy allows {self.policy.turn_bytes}")
            with importing_only(frozenset((*self.policy.code, self.model))):
                match asked:
                    case Enrol():
                        return self.enrol(asked).dumps(), None
                    case Task():
                        return self.work(asked, body)
                    case ExamRequest():
                        return self.examine(asked, body).dumps(), None
                    case _:
                        return self.meet(asked).dumps(), None
        except Exception as error:
            why = str(error) if isinstance(error, FedstillError) else f"{type(error).__name__}: {error}"
            return self.refusal(asked, why), None
        finally:
            torch.set_num_threads(before)

    def refusal(self, asked: Question | None, why: str) -> bytes:
        """A refusal, said, entered in the log, and as a message."""
        run = "" if asked is None else asked.run
        why = readable(why.splitlines()[0] if why else "unknown")
        self.report(f"refused: {why}")
        self.audit.refusal(run=run, asked="?" if asked is None else asked.kind, why=why)
        return Refusal(run=run, site=self.name, why=why).dumps()

    def enrol(self, asked: Enrol) -> Enrolled:
        """Introduce the site: nothing but counts, form, classes and normalisation of its data leaves it."""
        if asked.format != FORMAT:
            raise UsageError(
                f"the hub speaks format {asked.format} of messages, this site {FORMAT}: install one version"
            )
        settings = json.loads(asked.experiment)
        self._known_code(settings)
        plan = self._agreed(experiment(settings))
        train, test = self.own.divided(plan.local_test, plan.dealt_by, 0)  # sizes do not depend on its number
        wrong = self.policy.refuses_turn(plan, len(train))
        if wrong is not None:
            raise UsageError(wrong)
        self.spending.allow(asked.run_id, plan)
        agreed = digest(agreed_part(settings))
        folder = RunFolder(self.state, asked.run, asked.run_id)
        known = folder.read()
        if known is None and asked.run_id in self.spending.read():
            raise UsageError(f"run {asked.run} had turns here, and what was kept of it is gone: begin a new run")
        book = known or new_book(self.policy, self.state, asked.run_id, agreed)
        signer = consented(self.policy, self.state, asked, settings, begins=known is None)
        if book.experiment != agreed:
            raise UsageError(f"run {asked.run} has begun with another experiment")
        folder.write(book.enrolled(self.policy, plan.rounds, plan.active_count))
        leaves = ", ".join(f"{field} ({what})" for field, what in ledger(plan.method, plan.wrappers).items())
        self.report(f"run {asked.run}: {plan.title}; each turn sends {leaves}")
        self.audit.write("enrolled", run=asked.run, run_id=asked.run_id, experiment=agreed, signer=signer, sends=leaves)
        return Enrolled(
            run=asked.run, run_id=asked.run_id, site=self.name, samples=len(train), tests=self._tests(len(test)),
            model=self.model, summary=self._summary(),
            public=checksum(public_set(plan, self.public)), data=self.fingerprint, turns=book.turns,
        )  # fmt: skip

    def _summary(self) -> DataSummary:
        known = summary(self.own.train, self.own.class_names)
        try:
            return DataSummary.model_validate_json(json.dumps(asdict(known)))
        except ValidationError as error:
            raise DataError(f"this site's data cannot be told of: {': '.join(first_fault(error))}") from None

    def work(self, asked: Task, body: bytes | None) -> Answered:
        """Take a client's turn."""
        began = time.perf_counter()
        folder, book, scene = self._opened(asked)
        before = book.seconds
        book = book.with_turn(self.policy, asked.deadline, len(body or b""))
        if self.spending.enter(asked.run, asked.run_id, scene.plan):
            self.audit.write("privacy", run=asked.run, run_id=asked.run_id)
        folder.write(book)
        self.audit.write("turn", run=asked.run, round=asked.round + 1, bytes=len(body or b""))
        if any(wrapper.once for wrapper in scene.plan.wrappers):
            only_once(folder.path, asked.round, body)
        env = scene.env.at(asked.round, scene.client)
        states = States(folder.path)
        down = None if body is None else record.loads(body)
        party = Party(scene.train, scene.plan.wrappers)
        state, upload = turn(scene.method, env, party, states.before(asked.round), down)
        sums = sums_of(scene.plan)
        leaves = upload if sums is None else self.meetings.masked(sums, env, asked, state, upload)
        if type(leaves) is not leaving(scene.method, scene.plan.wrappers):
            raise FedstillError(f"a {type(leaves).__name__}, which {scene.plan.title} does not declare, is not sent")
        packed = record.dumps(leaves)
        if len(packed) > self.policy.turn_bytes:
            raise UsageError(f"an upload of {len(packed)} bytes: this site's policy allows {self.policy.turn_bytes}")
        if sums is None:
            states.put(asked.round, state, needed=asked.kept)
        spent = time.perf_counter() - began
        last = max(book.turns, asked.round + 1)
        folder.write(replace(book, turns=last, seconds=before + spent, bytes=book.bytes + len(packed)))
        self.report(f"run {asked.run}: round {asked.round + 1} took {spent:.2f} s")
        self.audit.write("sent", run=asked.run, round=asked.round + 1, bytes=len(packed), seconds=round(spent, 3))
        return Work(**self._to(asked), seconds=spent).dumps(), packed

    def meet(self, asked: SumQuestion) -> SumAnswer:
        """Secure sums: keys, shares, and at the end the shares that unmask the sum."""
        folder, book, scene = self._opened(asked)
        folder.write(book.with_question(self.policy))
        self.audit.write("secure sums", run=asked.run, round=asked.round + 1, asked=asked.kind)
        return self.meetings.answer(scene.setting, asked, folder.path, self._to(asked))

    def examine(self, asked: ExamRequest, body: bytes | None) -> Marks:
        """Test models on the site's local test: only counts leave it."""
        began = time.perf_counter()
        folder, book, scene = self._opened(asked)
        models = record.loads(body or b"")
        if not isinstance(models, Models):
            raise FedstillError(f"a {type(models).__name__} where an exam has Models")
        before = book.seconds
        book = book.with_exam(self.policy, asked.deadline, asked.round, len(models.weights), len(body or b""))
        folder.write(book)
        self.audit.write("exam", run=asked.run, round=asked.round + 1, models=len(models.weights))
        env = scene.env
        state = States(folder.path).before(asked.round + 1)
        own = None if state is None else scene.method.own(env.at(asked.round, scene.client), method_state(state))
        whose = models.architectures
        modules = {name: env.module(weights, whose.get(name)) for name, weights in models.weights.items()}
        if own is not None:
            modules["personal"] = env.module(own, scene.client)
        marks = self._marks(asked, scene, modules, own is not None, list(models.weights))
        folder.write(replace(book, seconds=before + time.perf_counter() - began))
        self.report(f"run {asked.run}: exam of {len(models.weights)} models in round {asked.round + 1}")
        return marks

    def _marks(self, asked: ExamRequest, scene: Scene, modules: Any, has_own: bool, names: list[str]) -> Marks:
        labels = scene.exam.pool.y
        correct = {name: scene.exam.correct(module) for name, module in modules.items()} if len(labels) else {}
        right = {name: int(hits.sum()) for name, hits in correct.items()}
        classes: dict[str, tuple[int, ...]] = {}
        if scene.plan.per_class:
            hits = {n: torch.bincount(labels[rows], minlength=scene.env.classes) for n, rows in correct.items()}
            there = torch.bincount(labels, minlength=scene.env.classes)
            hidden = bool((there[there > 0] < self.policy.least_tests).any())  # the others' sum would tell of one class
            classes = {name: tuple((counts * (not hidden)).tolist()) for name, counts in {**hits, "": there}.items()}
        return Marks(
            **self._to(asked), total=len(labels), right={name: right[name] for name in names if name in right},
            own=right.get("personal") if has_own else None, classes=classes,
        )  # fmt: skip

    def _to(self, asked: RoundQuestion) -> dict[str, Any]:
        """The fields by which an answer names its question."""
        return {
            "run": asked.run, "run_id": asked.run_id, "round": asked.round, "client": asked.client, "site": self.name,
        }  # fmt: skip

    def _opened(self, asked: RoundQuestion) -> tuple[RunFolder, RunBook, Scene]:
        """The run's folder, its book with this question's setting, and the scene."""
        folder = RunFolder(self.state, asked.run, asked.run_id)
        book = folder.read()
        if book is None:
            raise UsageError(f"run {asked.run}: this site has not enrolled in it, or has lost its state")
        book.in_round(asked.round)
        scene = self.scene(asked.setting)
        if (scene.setting.run, scene.setting.run_id) != (asked.run, asked.run_id):
            raise UsageError("a task whose setting is another run's")
        wrong = self.policy.refuses_turn(scene.plan, len(scene.train))
        if wrong is not None:
            raise UsageError(wrong)
        book = book.with_setting(scene.setting, scene.plan.active_count)
        if asked.client != scene.client:
            raise UsageError(f"a message for client {asked.client}: site {self.name} is client {scene.client}")
        return folder, book, scene

    def scene(self, text: str) -> Scene:
        """The stage as this site sees it, made once for a setting."""
        if text not in self.scenes:
            setting = read_setting(text)
            self._known_code(setting.experiment)
            plan = self._agreed(setting.plan)
            if self.name not in setting.sites:
                raise UsageError(f"site {self.name} is not part of run {setting.run}")
            client = setting.sites.index(self.name)
            folder = RunFolder(self.state, setting.run, setting.run_id).path
            env = setting.env(Storage(folder), self.device, public_set(plan, self.public))
            env = replace(env, secret=secret_for(self.state, f"noise of {setting.run_id}"))
            self._trusted(setting.specs[client])
            self._trusted(setting.specs[-1])
            own = self.own.cast(setting.brought, setting.class_names)
            train, test = (setting.fitted(part) for part in own.divided(plan.local_test, plan.dealt_by, client))
            if len(train) != setting.sizes[client]:
                raise UsageError(
                    f"site {self.name} has {len(train)} training samples, enrolled were {setting.sizes[client]}"
                )
            test = test[: self._tests(len(test))]
            exam = Exam(test, Portions.of([np.arange(len(test))]), None, env.classes, env.device)
            self.scenes = {text: Scene(setting, client, plan, env, train, exam)}  # one run at a time
        return self.scenes[text]

    def _tests(self, count: int) -> int:
        """How many test samples are examined: none where there are too few to hide one."""
        return count if count >= self.policy.least_tests else 0

    def _agreed(self, plan: Experiment) -> Experiment:
        """A plan that this site takes part in."""
        wrong = self.policy.refuses(plan)
        if wrong is not None:
            raise UsageError(wrong)
        return deployable(plan)

    def _trusted(self, model: str) -> None:
        """Code that the hub names is not imported unless the site named it too."""
        if ":" in model and model not in (self.model, *self.policy.code):
            raise UsageError(f"model {model}: start the site with --model {model} to let it run here")

    def _known_code(self, settings: Any) -> None:
        """Nothing in an experiment may name code that the site does not: `package.module:Name` would be imported."""
        for text in texts(settings):
            if re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", text) and text not in (self.model, *self.policy.code):
                raise UsageError(f"{text}: code of the hub's choice; this site's policy must name it (code = [...])")


def texts(value: Any) -> Iterator[str]:
    """Every text in a plain value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from (key, *texts(item))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from texts(item)


def warm_up() -> None:
    """Let torch load now what it loads at the first step: seconds that would count against the first round."""
    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.zeros(1)
    torch.optim.Adam([weight]).step()
