"""Rounds over Flower: tasks to sites, answers by a deadline, clients' states on the sites.

What a site sends passes the door (`messages.answer`) before anything else looks at it; whoever sends what it should not
is named, and after `quarantine` failures in a row left out for the rest of the run.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedstill.core import record
from fedstill.core.errors import FedstillError, RunError
from fedstill.core.loop import admit
from fedstill.core.method import Env, Method, Reply
from fedstill.core.shelf import Shelf
from fedstill.core.turn import leaving, received
from fedstill.experiment.setting import Setting
from fedstill.flower.allowance import ENROLMENT
from fedstill.flower.caps import counted_as, outsized, overcounted
from fedstill.flower.messages import (
    ExamRequest,
    Marks,
    Models,
    Refusal,
    RoundAnswer,
    RoundQuestion,
    Task,
    Work,
    answer,
    readable,
)
from fedstill.flower.post import AWAY, GONE, Collected, Post
from fedstill.flower.roster import POLL, Roster

SPARE = 16 << 20
"""An upload may be this many bytes larger than it should be before it is left where it is."""
LOOK = 2.0
"""Seconds between two looks whether the sites asked are still there."""
Bodies = Sequence[tuple[bytes | None, list[int]]]
"""What is sent along: each body with the clients that get it."""


class Late(FedstillError):
    """No answer within the deadline: the site may still be at it."""


class NotAsked(FedstillError):
    """The site was not asked, and so did not fail."""


@dataclass(frozen=True)
class Heard:
    """A site's answer: its head, and its body where it has one."""

    head: RoundAnswer
    body: bytes | None


Sums = Callable[["FlowerTransport", Env, Mapping[int, Any]], list[Reply[Any]]]
"""A round in which the hub is to see sums only (`sums_hub`)."""


class FlowerTransport:
    """A `Transport` whose clients are sites. Their states never come here: `states` stays empty."""

    idle = False  # the sites are examined by themselves, and are busy

    def __init__(
        self,
        post: Post,
        setting: Setting,
        method: Method[Any, Any, Any, Any],
        states: Shelf,
        roster: Roster,
        note: Callable[[str], None] = lambda text: None,
        sums: "Sums | None" = None,
    ) -> None:
        self.post = post
        self.sums = sums
        self.setting = setting
        self.plan = setting.plan
        self.method = method
        self.states = states
        self.roster = roster
        self.note = note
        self.failures = [0] * len(setting.sites)
        self.unmarked = [0] * len(setting.sites)
        """Exams in a row of which a site gave no marks that can be used."""
        self.text = setting.text()
        self.uploads = leaving(method, self.plan.wrappers)
        """The type of the record that leaves a site."""
        self.busy: set[int] = set()
        """Sites that are still at the task before: they get no exam, which would wait for them once more."""

    def exchange(self, env: Env, downs: Mapping[int, Any]) -> list[Reply[Any]]:
        """Give every site its download; who has not answered by the deadline is missing."""
        if all(self._left_out(k) for k in range(len(self.setting.sites))):
            raise RunError("all sites are in quarantine; see metrics.jsonl for why each was missing")
        if self.sums is not None:
            return self.sums(self, env, downs)
        questions = {k: Task(**self.common(env, k), kept=self.kept(env)) for k in downs}
        form = record.size(self.method.template(env.at(env.round, next(iter(downs))))) if downs else 0
        answers = self.ask(env, questions, written(downs), Work, "train", 2 * form + SPARE)
        self.busy = {k for k, outcome in answers.items() if isinstance(outcome, Late)}
        replies = [self._reply(env, k, answers[k]) for k in downs]
        wrong = self._wrong(env, downs, replies)
        self.judge(wrong, {k for k in downs if not isinstance(answers[k], NotAsked)})
        return [replace(r, upload=None, error=wrong[r.client]) if r.client in wrong else self._held(r) for r in replies]

    def _held(self, reply: Reply[Any]) -> Reply[Any]:
        """A reply that counts no more than its site does (`largest_share`)."""
        k = reply.client
        counts = (self.setting.counted or self.setting.sizes)[k]
        return replace(reply, upload=counted_as(reply.upload, counts / self.setting.sizes[k]))

    def examine(self, env: Env, models: Mapping[str, Any], architectures: Mapping[str, int]) -> dict[int, Marks]:
        """Every site's marks for these models, and for its own; sites that do not answer are left out.

        `architectures` names the client whose network a model has where it is not the server's. After `quarantine`
        exams in a row without marks a site is not waited for again.
        """
        silent = {k for k, times in enumerate(self.unmarked) if times >= self.plan.quarantine}
        everyone = [k for k in range(len(self.setting.sites)) if k not in self.busy | silent]
        questions = {k: ExamRequest(**self.common(env, k)) for k in everyone}
        bodies: Bodies = [(record.dumps(Models(models, architectures)), everyone)]
        answers = self.ask(env, questions, bodies, Marks, "evaluate", ENROLMENT)
        marks = {}
        for k, outcome in answers.items():
            site, wrong = self.setting.sites[k], str(outcome)
            if isinstance(outcome, Heard) and isinstance(outcome.head, Marks):
                misfit = self._misfit(k, outcome.head, models)
                if misfit is None:
                    marks[k] = outcome.head
                    self.unmarked[k] = 0
                    continue
                wrong = misfit
                self.note(f"round {env.round + 1}: the marks of {site} are left out: {wrong}")
            if not isinstance(outcome, NotAsked):
                self.post.audit.refusal(run=self.setting.run, site=site, why=readable(wrong))
                self.unmarked[k] += 1
                if self.unmarked[k] == self.plan.quarantine:
                    self.note(f"site {site} is examined no more after {self.unmarked[k]} exams without marks: {wrong}")
        return marks

    def close(self) -> None:
        """Nothing to stop: sites serve the next run."""

    def common(self, env: Env, k: int) -> dict[str, Any]:
        """What every question to a client has in it."""
        run = {"run": self.setting.run, "run_id": self.setting.run_id, "setting": self.text}
        return {**run, "round": env.round, "client": k, "deadline": float(self.plan.deadline)}

    def kept(self, env: Env) -> int:
        """The round that the hub will not go back behind."""
        every = self.plan.checkpoint_every
        return max(0, (env.round // every - 1) * every)

    def _misfit(self, k: int, marks: Any, models: Mapping[str, Any]) -> str | None:
        """What is wrong with marks that are of the right form."""
        classes = len(self.setting.class_names)
        if marks.total != self.setting.tests[k]:
            return f"{marks.total} test samples, enrolled were {self.setting.tests[k]}"
        if marks.total and marks.right.keys() != models.keys():
            return "they are for other models than were asked about"
        if self.plan.per_class and marks.total and not models.keys() <= marks.classes.keys():
            return "counts per class are missing"
        if any(len(counts) != classes for counts in marks.classes.values()):
            return f"counts for another number of classes than {classes}"
        return None

    def _left_out(self, k: int) -> bool:
        return self.failures[k] >= self.plan.quarantine

    def _wrong(self, env: Env, downs: Mapping[int, Any], replies: list[Reply[Any]]) -> dict[int, str]:
        """The clients whose replies cannot be used, and why: no answer, another form, far too large an update."""
        forms = {k: self.method.template(env.at(env.round, k)) for k in downs}
        known = [replace(r, down=downs[r.client], form=forms[r.client]) for r in replies]
        alone = [wrapper for wrapper in self.plan.wrappers if not wrapper.together]
        good, wrong = admit(self.method, env, received(alone, env, known))
        large = outsized({r.client: (r.upload, downs[r.client]) for r in good}, self.plan.largest_update)
        counted = {r.client: overcounted(r.upload, self.setting.sizes[r.client]) for r in good}
        large |= {k: why for k, why in counted.items() if why is not None}
        for k, why in large.items():
            self.note(f"round {env.round + 1}: site {self.setting.sites[k]}: {why}")
        return {**wrong, **{k: f"refused: {why}" for k, why in large.items()}}

    def judge(self, wrong: Mapping[int, str], asked: set[int]) -> None:
        """Enter failures in the log, count those in a row, and say which sites are left out from now on."""
        for k in sorted(asked):
            if k in wrong:
                self.post.audit.refusal(run=self.setting.run, site=self.setting.sites[k], why=readable(wrong[k]))
            self.failures[k] = self.failures[k] + 1 if k in wrong else 0
            if self.failures[k] == self.plan.quarantine:
                site, times = self.setting.sites[k], self.failures[k]
                self.note(f"site {site} is in quarantine after {times} failures: {wrong[k]}")

    def ask(
        self,
        env: Env,
        questions: Mapping[int, RoundQuestion],
        bodies: Bodies,
        kind: type[RoundAnswer],
        name: str,
        limit: int,
    ) -> dict[int, Heard | FedstillError]:
        """Send and collect: for each client the answer, of the right kind and to this very question, or an error."""
        until = time.monotonic() + self.plan.deadline
        self.post.forget()
        self.post.allow(limit)
        self.roster.call(self.setting.sites, LOOK)
        nodes: dict[int, int] = {}
        answers: dict[int, Heard | FedstillError] = {}
        for k in questions:
            site = self.setting.sites[k]
            node = self.roster.node(site)
            if self._left_out(k):
                answers[k] = NotAsked(f"in quarantine after {self.failures[k]} failures in a row")
            elif node is None:
                answers[k] = NotAsked(self.roster.refused.get(site, AWAY))
            else:
                nodes[node] = k
        since = {node: self.roster.answered[node] for node in nodes}
        sending = _Sending(
            self.post, self.setting.sites, nodes, questions, bodies, name, until, str(env.round + 1), since
        )
        sending.all()
        while len(answers) < len(questions) and time.monotonic() < until:
            for node, collected in self.post.collect(limit):
                if node in sending.returned:
                    wrong = sending.introduced(node, collected, self.roster)
                    answers |= {} if wrong is None else {nodes[node]: wrong}
                elif node in nodes:
                    answers[nodes[node]] = self._checked(collected, questions[nodes[node]], kind)
                else:  # it came back before this round, and took its time to say who it is: it is in the next one
                    self.roster.hear(node, collected)
            if len(answers) < len(questions):
                time.sleep(POLL)
                sending.again(self.roster, answers)
        late = Late(f"no answer within {self.plan.deadline:g} s")
        return {k: answers.get(k, late) for k in questions}

    def _checked(self, collected: Collected, asked: RoundQuestion, kind: type[RoundAnswer]) -> Heard | FedstillError:
        """The answer to this question, or what is wrong with what came instead."""
        if isinstance(collected, FedstillError):
            return collected
        head, body = collected
        try:
            given = answer(head)
        except FedstillError as error:
            return FedstillError(f"refused: {error}")
        site = self.setting.sites[asked.client]
        if isinstance(given, Refusal):
            return FedstillError(f"failed: {given.why}")
        if not isinstance(given, kind):
            return FedstillError(f"refused: a message of kind {given.kind!r} to a {asked.kind}")
        theirs = (given.run, given.run_id, given.round, given.client, given.site)
        if theirs != (asked.run, asked.run_id, asked.round, asked.client, site):
            return FedstillError(
                f"refused: an answer of {given.site!r} to run {given.run!r}, round {given.round + 1}, "
                f"client {given.client}"
            )
        self.roster.remember(site, given.round + 1 if isinstance(given, Work) else 0)
        return Heard(given, body)

    def _reply(self, env: Env, k: int, outcome: Heard | FedstillError) -> Reply[Any]:
        if isinstance(outcome, Heard) and isinstance(outcome.head, Work):
            try:
                upload = record.loads(outcome.body or b"")
                if type(upload) is not self.uploads:
                    raise FedstillError(f"a {type(upload).__name__} instead of a {self.uploads.__name__}")
                return Reply(k, env.sizes[k], upload, seconds=outcome.head.seconds)
            except FedstillError as error:
                outcome = FedstillError(f"refused: {error}")
        return Reply(k, env.sizes[k], None, error=str(outcome))


def written(downs: Mapping[int, Any]) -> Bodies:
    """The downloads' bytes with the clients that get them: most methods send all the same, which is written once."""
    groups: dict[int, list[int]] = {}
    for k, down in downs.items():
        groups.setdefault(id(down), []).append(k)
    return [(record.dumps(downs[ks[0]]), ks) for ks in groups.values()]


@dataclass
class _Sending:
    """The questions of a round on their way, sent again to a site that was started again meanwhile."""

    post: Post
    sites: Sequence[str]
    nodes: dict[int, int]
    """By node, the client that it is."""
    questions: Mapping[int, RoundQuestion]
    bodies: Bodies
    name: str
    until: float
    group: str
    since: dict[int, str]
    """By node, since when it is there."""
    returned: set[int] = field(default_factory=set)
    """Nodes that left and came back in this round, and have not said yet who they are."""
    looked: float = field(default_factory=time.monotonic)

    def all(self) -> None:
        """Send every question."""
        for body, clients in self.bodies:
            heads = {node: self.questions[k].dumps() for node, k in self.nodes.items() if k in clients}
            if heads:
                self._send(heads, body)

    def again(self, roster: Roster, answers: dict[int, Any]) -> None:
        """Every other second: a site that went away is missing; one that came back has forgotten its question."""
        if time.monotonic() - self.looked < LOOK:
            return
        self.looked = time.monotonic()
        online = self.post.nodes()
        for node, k in self.nodes.items():
            if k in answers:
                continue
            if node not in online:
                answers[k] = FedstillError(GONE)
            elif self.since.get(node) != online[node][1]:
                self.since[node] = online[node][1]
                self.returned.add(node)
                roster.ask_again(node, online)

    def introduced(self, node: int, collected: Collected, roster: Roster) -> FedstillError | None:
        """A site that came back has said who it is: it gets its question again, or why it does not."""
        self.returned.discard(node)
        roster.hear(node, collected)
        k = self.nodes[node]
        site = self.sites[k]
        if roster.node(site) != node:
            return NotAsked(roster.refused.get(site, GONE))
        body = next(body for body, clients in self.bodies if k in clients)
        self._send({node: self.questions[k].dumps()}, body)
        return None

    def _send(self, heads: Mapping[int, bytes], body: bytes | None) -> None:
        """Answers are taken until the round's deadline."""
        self.post.send(heads, body, self.name, max(1.0, self.until - time.monotonic()), self.group)
