"""Rounds over Flower: letters to sites through a `Grid`, answers by a deadline, clients' states on the sites.

The payload of a Flower message is the bytes of our records, never a pickle. What all sites get (the download, models to
be examined) travels as one attachment, which Flower stores once however many sites there are.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectUnavailableError,
    inflate_object_from_contents,
)

from fedstill.core import record
from fedstill.core.errors import FedstillError, RunError
from fedstill.core.method import Env, Method, Reply
from fedstill.core.shelf import Shelf
from fedstill.experiment.setting import Setting
from fedstill.flower.enrolment import introduced
from fedstill.flower.messages import FORMAT, Enrol, Enrolled, ExamRequest, Marks, Models, Refusal, Task, Work, opened

POLL = 0.2
SMALL = 1 << 20
"""Messages up to this size travel as one record."""
AWAY = "offline"
GONE = "offline since the middle of the round"
CHUNK = 5 << 20
"""Bytes of an object of Flower's, at most."""
SPARE = 16 << 20
"""An answer may be this many bytes larger than it should be before it is left where it is."""


def packed(letter: bytes, load: bytes | ArrayRecord | None = None) -> RecordDict:
    """The content of a Flower message: one record when it is small, since every record costs a request each way."""
    if isinstance(load, ArrayRecord) or len(letter) > SMALL:
        attached = load if isinstance(load, ArrayRecord) else None if load is None else attachment(load)
        parts = {"letter": attachment(letter), **({} if attached is None else {"load": attached})}
        return RecordDict(dict(parts))
    return RecordDict({"small": ConfigRecord({"letter": letter, **({} if load is None else {"load": load})})})


def attachment(data: bytes) -> ArrayRecord:
    """Bytes as Flower stores and sends them: in chunks, under their checksum."""
    return ArrayRecord({"record": Array("uint8", (len(data),), "fedstill.record", data)})


def unpacked(content: RecordDict) -> tuple[bytes, bytes | None]:
    """The letter of a Flower message, and what is attached to it."""
    try:
        if "small" in content:
            parts: Any = content["small"]
            letter, load = parts["letter"], parts.get("load")
        else:
            both: Any = content
            letter, load = both["letter"]["record"].data, both["load"]["record"].data if "load" in both else None
    except (KeyError, AttributeError, TypeError):
        raise FedstillError("a message without a letter in it") from None
    if not isinstance(letter, bytes) or not isinstance(load, bytes | None):
        raise FedstillError("a message without a letter in it")
    return letter, load


def too_large(limit: int) -> str:
    """Why an answer is left unread."""
    return f"refused: its answer is larger than {limit >> 20} MiB"


@dataclass
class Sent:
    """A message under way: to whom, and what has come back of the answer so far."""

    node: int
    parts: list[str] | None = None
    contents: dict[str, bytes] = field(default_factory=dict)
    size: int = 0
    answer: str = ""


class Post:
    """Sends letters to Flower nodes and collects the answers, piece by piece and never more than was expected."""

    def __init__(self, grid: Grid) -> None:
        self.grid: Any = grid
        self.under_way: dict[str, Sent] = {}

    def nodes(self) -> dict[int, tuple[str, str]]:
        """The nodes that are there: the name each one's key was registered under, and since when it is there."""
        if not hasattr(self.grid, "get_nodes"):
            return dict.fromkeys(self.grid.get_node_ids(), ("", ""))
        return {n.node_id: (n.name, n.last_activated_at) for n in self.grid.get_nodes()}

    def send(
        self, letters: Mapping[int, bytes], load: bytes | None = None, kind: str = "train", group: str = ""
    ) -> None:
        """Send each node its letter, all with the same attachment."""
        attached = load if load is None or len(load) <= SMALL else attachment(load)
        messages = [Message(packed(letter, attached), node, kind, group_id=group) for node, letter in letters.items()]
        for node, message in zip(letters, self.grid.push_messages(messages), strict=True):
            if message:
                self.under_way[message] = Sent(node)

    def forget(self) -> None:
        """Stop waiting for whatever has not come."""
        self.under_way = {}

    def collect(self, limit: int) -> Iterator[tuple[int, bytes | FedstillError]]:
        """The answers that have come since the last time; one that is larger than `limit` is left unread."""
        asked = [message for message, sent in self.under_way.items() if sent.parts is None]
        client = self.grid._runtime_client
        if asked:
            found = client.PullMessages(PullAppMessagesRequest(message_ids=asked))
            for message, tree in zip(found.messages_list, found.message_object_trees, strict=True):
                sent = self.under_way[message.metadata.reply_to_message_id]
                sent.answer = message.metadata.message_id
                sent.parts = [part.object_id for part in iterate_object_tree(tree)]
        for message, sent in list(self.under_way.items()):
            if sent.parts is None:
                continue
            read: bytes | FedstillError | None
            try:
                read = self._read(client, sent, limit)
            except (FedstillError, ObjectPullError) as error:
                read = error if isinstance(error, FedstillError) else FedstillError(f"its answer was lost: {error}")
            if read is not None:
                del self.under_way[message]
                yield sent.node, read

    def _read(self, client: Any, sent: Sent, limit: int) -> bytes | None:
        """Fetch what is there of an answer; None while some of it is still being sent."""
        run = self.grid.run.run_id
        node = self.grid.node
        fetch = make_pull_object_fn_protobuf(client.PullObject, node, run)
        if len(sent.parts or ()) > limit // CHUNK + 16:
            raise FedstillError(too_large(limit))
        while sent.parts:
            try:
                content = fetch(sent.parts[-1])
            except ObjectUnavailableError:
                return None
            sent.contents[sent.parts.pop()] = content
            sent.size += len(content)
            if sent.size > limit:
                raise FedstillError(too_large(limit))
        client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=node, run_id=run, message_object_id=sent.answer)
        )
        message = inflate_object_from_contents(sent.answer, sent.contents)
        assert isinstance(message, Message)
        if message.has_error():
            if message.error.code == ErrorCode.NODE_UNAVAILABLE:
                raise FedstillError(GONE)
            raise FedstillError(f"{message.error.reason or 'failed'} (Flower's code {message.error.code})")
        return unpacked(message.content)[0]


class FlowerTransport:
    """A `Transport` whose clients are sites. Their states never come here: `states` stays empty."""

    def __init__(
        self, post: Post, setting: Setting, method: Method[Any, Any, Any, Any], states: Shelf, roster: "Roster"
    ) -> None:
        self.post = post
        self.setting = setting
        self.plan = setting.plan
        self.method = method
        self.states = states
        self.roster = roster
        self.failures = [0] * len(setting.sites)
        self.text = setting.text()
        self.late = f"no answer within {self.plan.deadline:g} s"
        self.busy: set[int] = set()
        """Sites that are still at the letter before: they get no exam, which would wait for them once more."""

    def exchange(self, env: Env, downs: Mapping[int, Any]) -> list[Reply[Any]]:
        """Give every site its download; who has not answered by the deadline is missing."""
        every = self.plan.checkpoint_every
        kept = max(0, (env.round // every - 1) * every)
        letters = {k: Task(self.setting.run, env.round, k, self.text, kept) for k in downs}
        groups: dict[int, list[int]] = {}  # most methods send all clients the same: then it is written once
        for k, down in downs.items():
            groups.setdefault(id(down), []).append(k)
        loads = [(record.dumps(downs[ks[0]]), ks) for ks in groups.values()]
        form = record.size(self.method.template(env.at(env.round, next(iter(downs))))) if downs else 0
        limit = 2 * form + SPARE
        answers = self._ask(env, letters, loads, Work, "train", limit)
        self.busy = {k for k, answer in answers.items() if str(answer) in (self.late, too_large(limit))}
        return [self._reply(env, k, answers[k]) for k in downs]

    def examine(self, env: Env, models: Mapping[str, Any]) -> dict[int, Marks]:
        """Every site's marks for these models, and for its own; sites that do not answer are left out."""
        everyone = [k for k in range(len(self.setting.sites)) if k not in self.busy]
        letters = {k: ExamRequest(self.setting.run, env.round, k, self.text) for k in everyone}
        loads = [(record.dumps(Models(models)), everyone)]
        answers = self._ask(env, letters, loads, Marks, "evaluate", SPARE)
        return {k: marks for k, marks in answers.items() if isinstance(marks, Marks)}

    def judge(self, missing: Mapping[int, str], active: list[int]) -> list[str]:
        """Count failures in a row; the sites that are left out from now on."""
        named = []
        for k in active:
            if missing.get(k, "") == AWAY or missing.get(k, "").startswith("in quarantine"):
                continue  # it was not asked
            self.failures[k] = self.failures[k] + 1 if k in missing else 0
            if self.failures[k] == self.plan.quarantine:
                named.append(
                    f"site {self.setting.sites[k]} is in quarantine after {self.failures[k]} failures: {missing[k]}"
                )
        if all(count >= self.plan.quarantine for count in self.failures):
            raise RunError("all sites are in quarantine; see metrics.jsonl for why each was missing")
        return named

    def close(self) -> None:
        """Nothing to stop: sites serve the next run."""

    def _ask(
        self,
        env: Env,
        letters: Mapping[int, Any],
        loads: list[tuple[bytes, list[int]]],
        kind: type,
        name: str,
        limit: int,
    ) -> dict[int, Any]:
        """Send and collect: for each client the answer, of the right kind and to this very letter, or an error."""
        until = time.monotonic() + self.plan.deadline
        self.post.forget()
        self.roster.call(self.setting.sites, 2.0)
        where, answers = {}, {}
        for k in letters:
            site = self.setting.sites[k]
            node = self.roster.node(site)
            if self.failures[k] >= self.plan.quarantine:
                answers[k] = FedstillError(f"in quarantine after {self.failures[k]} failures in a row")
            elif node is None:
                answers[k] = FedstillError(self.roster.refused.get(site, AWAY))
            else:
                where[node] = k
        for load, clients in loads:
            there = {node: record.dumps(letters[k]) for node, k in where.items() if k in clients}
            if there:
                self.post.send(there, load, name, str(env.round + 1))
        answers |= self._collect(env, where, letters, loads, kind, name, limit, until)
        return answers

    def _collect(
        self, env: Env, where: dict[int, int], letters: Any, loads: Any, kind: type, name: str, limit: int, until: float
    ) -> dict[int, Any]:
        answers: dict[int, Any] = {}
        since = {node: self.roster.since.get(node) for node in where}
        looked = time.monotonic()
        while len(answers) < len(where) and time.monotonic() < until:
            for node, answer in self.post.collect(limit):
                if node in where:
                    answers[where[node]] = self._checked(answer, letters[where[node]], kind)
            if len(answers) == len(where):
                break
            time.sleep(POLL)
            if time.monotonic() - looked > 2:
                looked = time.monotonic()
                nodes = self.post.nodes()
                for node, k in where.items():
                    if k in answers:
                        continue
                    if node not in nodes:
                        answers[k] = FedstillError(GONE)
                    elif since[node] not in (None, nodes[node][1]):  # started again: it has forgotten the letter
                        since[node] = None
                        load = next(load for load, clients in loads if k in clients)
                        self.post.send({node: record.dumps(letters[k])}, load, name, str(env.round + 1))
        return {k: answers.get(k, FedstillError(self.late)) for k in where.values()}

    def _checked(self, answer: bytes | FedstillError, letter: Any, kind: type) -> Any:
        """The answer to this letter, or what is wrong with what came instead."""
        if isinstance(answer, FedstillError):
            return answer
        try:
            found = opened(answer, kind, Refusal)
        except FedstillError as error:
            return FedstillError(f"refused: {error}")
        site = self.setting.sites[letter.client]
        if isinstance(found, Refusal):
            return FedstillError(f"failed: {found.why}")
        theirs = (found.run, found.round, found.client, found.site)
        if theirs != (letter.run, letter.round, letter.client, site):
            return FedstillError(
                f"refused: an answer of {theirs[3]!r} to run {theirs[0]!r}, round {theirs[1]}, client {theirs[2]}"
            )
        return found

    def _reply(self, env: Env, k: int, answer: Work | FedstillError) -> Reply[Any]:
        if isinstance(answer, FedstillError):
            return Reply(k, env.sizes[k], None, error=str(answer))
        return Reply(k, env.sizes[k], answer.upload, seconds=answer.seconds)


class Roster:
    """Which node is which site. A site's name is the one its key was registered under, else what it says."""

    def __init__(self, post: Post, run: str, experiment: str) -> None:
        self.post = post
        self.letter = record.dumps(Enrol(run, FORMAT, experiment))
        self.run = run
        self.enrolled: dict[str, Enrolled] = {}
        self.sites: dict[str, int] = {}
        self.refused: dict[str, str] = {}
        self.since: dict[int, str] = {}
        self.answered: dict[int, str] = {}
        self.online: dict[int, tuple[str, str]] = {}

    def node(self, site: str) -> int | None:
        """The node of a site that is there."""
        node = self.sites.get(site)
        return node if node in self.online else None

    def call(self, wanted: tuple[str, ...] = (), seconds: float = 5.0) -> None:
        """See who is there; ask nodes that are new who they are, and wait for that while sites wanted are missing."""
        self.online = self.post.nodes()
        self.since = {node: since for node, (_, since) in self.online.items()}
        waiting = {node for node, since in self.since.items() if self.answered.get(node) != since}
        if not waiting or (wanted and all(self.node(site) is not None for site in wanted)):
            return
        asked = {sent.node for sent in self.post.under_way.values()}
        if new := waiting - asked:
            self.post.send(dict.fromkeys(sorted(new), self.letter), kind="query")
        until = time.monotonic() + seconds
        while waiting and time.monotonic() < until:
            for node, answer in self.post.collect(SPARE):
                waiting.discard(node)
                self._note(node, answer)
            time.sleep(POLL if waiting else 0)

    def _note(self, node: int, answer: bytes | FedstillError) -> None:
        registered, since = self.online.get(node, ("", ""))
        self.answered[node] = since
        site = registered or f"node {node}"
        try:
            if isinstance(answer, FedstillError):
                raise answer
            found = opened(answer, Enrolled, Refusal)
            if registered and found.site != registered:
                raise FedstillError(f"its key is registered as {registered!r}, it calls itself {found.site!r}")
            site = found.site
            if isinstance(found, Refusal):
                raise FedstillError(found.why)
            if found.run != self.run:
                raise FedstillError(f"an answer to run {found.run!r}")
            introduced(found)
        except FedstillError as error:
            self.refused[site] = f"does not take part: {error}"
            return
        self.refused.pop(site, None)
        self.enrolled[site] = found
        self.sites[site] = node
