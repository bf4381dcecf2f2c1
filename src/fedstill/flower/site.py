"""A site's own half: it reads a letter, does what it asks with its own data, and writes the answer.

Data, models and states stay here. What a site keeps between rounds is written to its state folder after every turn,
one file a round; a turn starts from the newest file of an earlier round, so a round that is repeated (the hub was
restarted) gives the same answer again.
"""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from fedstill.core import record
from fedstill.core.errors import FedstillError, UsageError
from fedstill.core.method import Env, Method
from fedstill.core.shelf import Storage
from fedstill.core.turn import Party, ledger, method_state, turn
from fedstill.data import datasets
from fedstill.data.own import Own, read_own
from fedstill.data.samples import Samples
from fedstill.data.summary import summary
from fedstill.experiment.config import Experiment, experiment
from fedstill.experiment.evaluate import Exam
from fedstill.experiment.setting import Setting
from fedstill.flower.enrolment import checksum, deployable, public_set
from fedstill.flower.messages import (
    FORMAT,
    Enrol,
    Enrolled,
    ExamRequest,
    Marks,
    Models,
    Refusal,
    Task,
    Work,
    checked_name,
    opened,
)


@dataclass(frozen=True)
class Scene:
    """What a site derives from a setting, once."""

    client: int
    plan: Experiment
    env: Env
    train: Samples
    paper: Exam

    @property
    def method(self) -> Method[Any, Any, Any, Any]:
        """The method."""
        return self.plan.method


class Site:
    """One site: its name, its data, its model and its state folder."""

    def __init__(
        self,
        name: str,
        data: str,
        state: Path,
        model: str = "auto",
        public: str | None = None,
        device: str = "cpu",
        methods: tuple[str, ...] = (),
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.name = name
        self.own: Own = read_own(data)
        self.state = state
        self.model = model
        self.public = public
        self.device = device
        self.methods = methods
        self.say = say
        self.scenes: dict[str, Scene] = {}
        warm_up()

    def answer(self, data: bytes, load: bytes | None = None) -> bytes:
        """The answer to a letter; whatever goes wrong becomes a refusal that says so."""
        run = ""
        before = torch.get_num_threads()
        torch.set_num_threads(1)  # as in the simulator: the same bits
        try:
            letter = opened(data, Enrol, Task, ExamRequest)
            run = checked_name("run", letter.run)
            match letter:
                case Enrol():
                    return record.dumps(self.enrol(letter))
                case Task():
                    return record.dumps(self.work(letter, None if load is None else record.loads(load)))
                case _:
                    return record.dumps(self.examine(letter, opened(load or b"", Models)))
        except Exception as error:
            why = str(error) if isinstance(error, FedstillError) else f"{type(error).__name__}: {error}"
            self.say(f"refused: {why}")
            return record.dumps(Refusal(run, self.name, why.splitlines()[0] if why else "unknown"))
        finally:
            torch.set_num_threads(before)

    def enrol(self, letter: Enrol) -> Enrolled:
        """Introduce the site: nothing but counts, form, classes and normalisation of its data leaves it."""
        if letter.format != FORMAT:
            raise UsageError(
                f"the hub speaks format {letter.format} of letters, this site {FORMAT}: install one version"
            )
        plan = self._agreed(experiment(json.loads(letter.experiment)))
        train, test = self.own.divided(plan.local_test, plan.dealt_by, 0)  # sizes do not depend on its number
        known = summary(self.own.train, self.own.class_names)
        public = checksum(public_set(plan, self._public(plan)))
        leaves = ", ".join(f"{field} ({what})" for field, what in ledger(plan.method, plan.wrappers).items())
        self.say(f"run {letter.run}: {plan.title}; each turn sends {leaves}")
        return Enrolled(letter.run, self.name, len(train), len(test), self.model, json.dumps(asdict(known)), public)

    def work(self, letter: Task, down: Any) -> Work:
        """Take a client's turn."""
        began = time.perf_counter()
        scene = self.scene(letter.setting)
        self._mine(letter, scene)
        env = scene.env.at(letter.round, scene.client)
        kept = States(self.state / "runs" / letter.run)
        party = Party(scene.train, scene.plan.wrappers)
        state, upload = turn(scene.method, env, party, kept.before(letter.round), down)
        kept.put(letter.round, state, needed=letter.kept)
        spent = time.perf_counter() - began
        self.say(f"run {letter.run}: round {letter.round + 1} took {spent:.2f} s")
        return Work(letter.run, letter.round, scene.client, self.name, spent, upload)

    def examine(self, letter: ExamRequest, models: Models) -> Marks:
        """Test models on the site's local test: only counts leave it."""
        scene = self.scene(letter.setting)
        self._mine(letter, scene)
        env, paper = scene.env, scene.paper
        modules = {name: env.module(weights) for name, weights in models.weights.items()}
        state = States(self.state / "runs" / letter.run).before(letter.round + 1)
        own = None if state is None else scene.method.own(env.at(letter.round, scene.client), method_state(state))
        if own is not None:
            modules["personal"] = env.module(own, scene.client)
        correct = {name: paper.correct(module) for name, module in modules.items()} if len(paper.pool) else {}
        right = {name: int(marks.sum()) for name, marks in correct.items()}
        classes: dict[str, tuple[int, ...]] = {}
        if scene.plan.per_class:
            labels = paper.pool.y
            there = torch.bincount(labels, minlength=env.classes)
            hits = {n: torch.bincount(labels[marks], minlength=env.classes) for n, marks in correct.items()}
            classes = {name: tuple(counts.tolist()) for name, counts in {**hits, "": there}.items()}
        own_right = None if own is None else right.get("personal")
        named = {name: right[name] for name in models.weights if name in right}
        return Marks(letter.run, letter.round, scene.client, self.name, len(paper.pool), named, own_right, classes)

    def scene(self, text: str) -> Scene:
        """The stage as this site sees it, made once for a setting."""
        if text not in self.scenes:
            setting = Setting.read(text)
            plan = self._agreed(setting.plan)
            if self.name not in setting.sites:
                raise UsageError(f"site {self.name} is not part of run {setting.run}")
            client = setting.sites.index(self.name)
            env = setting.env(
                Storage(self.state / "runs" / setting.run), self.device, public_set(plan, self._public(plan))
            )
            self._trusted(setting.specs[client])
            self._trusted(setting.specs[-1])
            own = self.own.cast(setting.brought, setting.class_names)
            train, test = (setting.fitted(part) for part in own.divided(plan.local_test, plan.dealt_by, client))
            if len(train) != setting.sizes[client]:
                raise UsageError(
                    f"site {self.name} has {len(train)} training samples, enrolled were {setting.sizes[client]}"
                )
            paper = Exam(test, (torch.arange(len(test)),), None, env.classes, env.device)
            self.scenes = {text: Scene(client, plan, env, train, paper)}  # one run at a time
        return self.scenes[text]

    def _agreed(self, plan: Experiment) -> Experiment:
        """A plan that this site takes part in."""
        if self.methods and plan.title not in self.methods:
            raise UsageError(f"this site takes part in {', '.join(self.methods)} only, not in {plan.title}")
        return deployable(plan)

    def _public(self, plan: Experiment) -> str | None:
        """Where the public set is; a path on this machine is for the site to name, never for the hub."""
        if isinstance(plan.public, str) and self.public is None and plan.public not in datasets:
            raise UsageError(f"public = {plan.public!r}: start the site with --public and its own path to this set")
        return self.public

    def _trusted(self, model: str) -> None:
        """Code that the hub names is not imported unless the site named it too."""
        if ":" in model and model != self.model:
            raise UsageError(f"model {model}: start the site with --model {model} to let it run here")

    def _mine(self, letter: Task | ExamRequest, scene: Scene) -> None:
        if letter.client != scene.client:
            raise UsageError(f"a letter for client {letter.client}: site {self.name} is client {scene.client}")


def warm_up() -> None:
    """Let torch load now what it loads at the first step: seconds that would count against the first round."""
    weight = torch.nn.Parameter(torch.zeros(1))
    weight.grad = torch.zeros(1)
    torch.optim.Adam([weight]).step()


class States:
    """What a site keeps for a run: a file for each round it took part in, as long as the hub may go back to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def before(self, round: int) -> Any:
        """The state after the last turn before `round`; None when there was none."""
        earlier = [t for t in self._rounds() if t < round]
        return record.load(self._file(earlier[-1])) if earlier else None

    def put(self, round: int, state: Any, needed: int) -> None:
        """Keep the state after `round`; forget what no round from `needed` on starts from."""
        if state is None:
            return
        record.save(self._file(round), state)
        old = [t for t in self._rounds() if t < needed]
        for t in old[:-1]:
            self._file(t).unlink(missing_ok=True)

    def _rounds(self) -> list[int]:
        return sorted(int(file.stem) for file in self.folder.glob("[0-9]*.safetensors"))

    def _file(self, round: int) -> Path:
        return self.folder / f"{round:06d}.safetensors"
