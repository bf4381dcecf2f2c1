"""Fuzzed messages through the doors of a hub and of a site, and what that costs them in memory.

    python benchmarks/door.py [messages]          so many through each of the two doors (100,000)
    python benchmarks/door.py hub|site messages   through one of them

Good messages are changed at random: bytes of the head, bytes of the body, fields of the head, Flower's own objects
around them. Each travels as Flower's objects to its reader and passes everything that a real one passes: the parcel,
the schema, the record, the form and the caps at the hub; the parcel, the schema, the policy, the record and the turn at
the site. Every message must end in an answer, or in a refusal of one printable line; anything else fails. Both doors
have a process of their own, whose memory is printed.
"""

import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

ROGUES = 100
"""Rogue sites in the run at the hub's door, beside three honest ones."""
HONEST = ("site-a", "site-b", "site-c")
ID = "0123456789abcdef" * 2
MEMORY = Path("/dev/shm")
"""Where a site's books are kept meanwhile, so that no disk is waited for."""
GROWTH = 256
"""MiB that a reader may grow by while it reads."""
WRONG: list[Any] = [
    None, True, -1, 10**10, 10**400, 1.5, 1e308, "", "a\nb", "[/b]\x1b[2J", "../etc", "os:abort", "x" * 10**5, [], [[]],
    {}, {"a": {"b": {}}}, [1e308] * 3, {"": -1},
]  # fmt: skip


def memory() -> float:
    """The most memory that this process has had so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def changed(data: bytes, stream: random.Random) -> bytes:
    """Some bytes of these changed, cut out, doubled or put in."""
    spoilt = bytearray(data)
    for _ in range(stream.randint(1, 4)):
        at = stream.randrange(len(spoilt) + 1)
        match stream.randrange(4):
            case 0:
                spoilt[at : at + 1] = stream.randbytes(1)
            case 1:
                del spoilt[at : at + stream.randint(1, 40)]
            case 2:
                spoilt[at:at] = spoilt[: stream.randint(1, 60)]
            case _:
                spoilt[at:at] = str(stream.choice([10**30, -1, 1e300, "NaN", '"', "{}", "[]", "null"])).encode()
    return bytes(spoilt)


def misfielded(head: bytes, stream: random.Random) -> bytes:
    """A head with a wrong value in a field, perhaps a nested one."""
    whole = json.loads(head)
    place = whole
    while isinstance(inner := place[key := stream.choice(list(place))], dict) and inner and stream.random() < 0.7:
        place = inner
    place[key] = stream.choice(WRONG)
    return json.dumps(whole).encode()


def spoilt(head: bytes, body: bytes | None, stream: random.Random) -> tuple[bytes, bytes | None]:
    """A message of which something is wrong, most of the time."""
    match stream.randrange(5):
        case 0:
            return changed(head, stream), body
        case 1:
            return misfielded(head, stream), body
        case 2:
            return head, None if body is None else changed(body[: stream.choice([64, 4096, len(body)])], stream)
        case 3 if body is not None:
            at = stream.randrange(min(len(body), 2000))  # the record's own head stands first
            return head, body[:at] + stream.randbytes(stream.randint(1, 8)) + body[at + 4 :]
        case _:
            return head, body


class Objects:
    """Messages as Flower's objects: what a sender pushed, and what a reader pulls."""

    def __init__(self, stream: random.Random) -> None:
        self.stream = stream
        self.contents: dict[str, bytes] = {}

    def put(self, head: bytes, body: bytes | None, rogue: bool) -> tuple[Any, list[str]]:
        """Store a message; its object tree. One of a rogue's objects may be spoilt on the way."""
        from flwr.app import Message
        from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

        from fedstill.flower.content import packed

        message = Message(packed(head, body), 1, "train")
        made = {name: part.deflate() for name, part in get_all_nested_objects(message).items()}
        if rogue and self.stream.random() < 0.25:
            victim = self.stream.choice(list(made))
            made[victim] = changed(made[victim], self.stream)
        self.contents |= made
        return get_object_tree(message), list(made)

    def pull(self, name: str) -> bytes:
        """An object's bytes."""
        return self.contents[name]


@dataclass
class Tally:
    """What became of the messages."""

    ends: Counter[str]
    messages: int = 0

    def note(self, why: str | None) -> None:
        """One more message: why it was refused, None where it was not."""
        self.messages += 1
        self.ends["taken" if why is None else "refused"] += 1
        if why is not None and not (why.isprintable() and len(why) < 1000):
            raise SystemExit(f"a refusal that is no line: {why!r}")
        if self.messages % 10_000 == 0:
            print(f"  {self.messages:,} messages, {memory():.0f} MiB at most so far", file=sys.stderr, flush=True)


def data(folder: Path) -> Path:
    """120 digits for a site."""
    from fedstill.data import load

    digits = load("digits").train
    file = folder / "site.npz"
    np.savez(file, x_train=digits.x[:120].numpy(), y_train=digits.y[:120].numpy())
    return file


def plan(sites: int) -> Any:
    from fedstill.experiment.config import experiment
    from fedstill.flower.enrolment import deployable

    method = {"name": "fedavg", "epochs": 1}
    settings = {"method": method, "model": "mlp", "clients": sites, "active": 1.0, "rounds": 10**6, "quarantine": 10**9}
    return deployable(experiment({**settings, "deadline": 60.0, "largest_share": 1.0}))


class Honest:
    """An honest site's answers to a hub's first questions, to be changed and repeated."""

    def __init__(self, folder: Path, sites: tuple[str, ...]) -> None:
        from fedstill.core import record
        from fedstill.core.shelf import Storage
        from fedstill.flower.enrolment import settle
        from fedstill.flower.messages import FORMAT, Enrol, Enrolled, ExamRequest, Models, Task, answer
        from fedstill.flower.policy import Policy
        from fedstill.flower.site import Site

        endless = {"turns_per_run": 10**12, "exams_per_run": 10**12, "exams_per_round": 10**12, "runs_per_day": 10**12}
        self.site = Site("site-a", str(data(folder)), folder / "site", policy=Policy(**endless, run_bytes=10**12))
        self.plan = plan(len(sites))
        enrol = Enrol(run="r", run_id=ID, format=FORMAT, experiment=json.dumps(self.plan.plain()), signature="")
        self.enrolled = self.site.answer(enrol.dumps())[0]
        found = answer(self.enrolled)
        assert isinstance(found, Enrolled), found
        self.setting = settle("r", ID, self.plan, {s: found.model_copy(update={"site": s}) for s in sites})
        self.env = self.setting.stage(Storage()).env
        self.client = sites.index("site-a")
        common = {"run": "r", "run_id": ID, "round": 0, "client": self.client, "setting": self.setting.text()}
        task, exam = Task(**common, kept=0, deadline=60.0), ExamRequest(**common, deadline=60.0)
        method = self.plan.method
        self.server = method.init_server(self.env.at(0))
        down = record.dumps(method.download(self.env.at(0), self.server))
        models = record.dumps(Models({"overall": self.env.initial()}))
        self.questions: list[tuple[bytes, bytes | None]] = [
            (enrol.dumps(), None), (task.dumps(), down), (exam.dumps(), models),
        ]  # fmt: skip
        self.work, self.upload = self.site.answer(task.dumps(), down)


def site_door(count: int, folder: Path) -> None:
    """So many fuzzed questions to a site."""
    from fedstill.core.errors import FedstillError
    from fedstill.flower.api.parcels import Parcel, content_of
    from fedstill.flower.content import unpacked
    from fedstill.flower.messages import Refusal, answer

    stream, tally = random.Random(1), Tally(Counter())
    honest = Honest(folder, HONEST)
    began, before = time.perf_counter(), memory()
    limit = honest.site.policy.turn_bytes
    for _ in range(count):
        objects = Objects(stream)
        tree, _ = objects.put(*spoilt(*stream.choice(honest.questions), stream), rogue=True)
        try:
            parcel = Parcel.of(tree, limit)
            parcel.fetch(objects.pull, limit)
            head, body = unpacked(content_of(parcel.message()))
        except FedstillError as error:
            tally.note(str(error))
            continue
        found = answer(honest.site.answer(head, body)[0])
        tally.note(found.why if isinstance(found, Refusal) else None)
    report("site", tally, time.perf_counter() - began, before)


class Grid:
    """The hub's side of Flower, in this process: rogues answer every question with something spoilt."""

    def __init__(self, honest: Honest, sites: tuple[str, ...], stream: random.Random) -> None:
        self.honest, self.sites, self.stream = honest, sites, stream
        self.objects = Objects(stream)
        self.replies: dict[str, tuple[int, Any, list[str]]] = {}
        self.sent = 0
        self.node = None
        self.run = SimpleNamespace(run_id=1)
        self._runtime_client = self

    def get_nodes(self) -> list[Any]:
        """All sites are there."""
        return [SimpleNamespace(node_id=100 + k, name=s, last_activated_at="x") for k, s in enumerate(self.sites)]

    def push_messages(self, messages: list[Any]) -> list[str]:
        """Every question is answered at once."""
        from fedstill.flower.content import unpacked
        from fedstill.flower.messages import Enrol, Task, question

        numbers = []
        for message in messages:
            node = message.metadata.dst_node_id
            site = self.sites[node - 100]
            asked = question(unpacked(message.content)[0])
            head, body = self.honest.enrolled, None
            own: dict[str, Any] = {"site": site}
            if not isinstance(asked, Enrol):
                head, body = self.honest.work, self.honest.upload
                own |= {"client": asked.client, "round": asked.round}
            head = json.dumps({**json.loads(head), **own}).encode()
            rogue = site not in HONEST
            if rogue:
                head, body = spoilt(head, body, self.stream)
            self.sent += 1
            number = str(self.sent)
            tree, names = self.objects.put(head, body, rogue and isinstance(asked, Task))
            self.replies[number] = (node, tree, names)
            numbers.append(number)
        return numbers

    def PullMessages(self, request: Any) -> Any:  # noqa: N802 (Flower's name)
        """The answers to these questions."""
        from flwr.proto.message_pb2 import Message, Metadata

        found = [(number, *self.replies[number]) for number in request.message_ids if number in self.replies]
        heads = [Message(metadata=Metadata(src_node_id=node, reply_to_message_id=n)) for n, node, _, _ in found]
        return SimpleNamespace(messages_list=heads, message_object_trees=[tree for _, _, tree, _ in found])

    def PullObject(self, request: Any) -> Any:  # noqa: N802
        """An object of an answer."""
        content = self.objects.contents.get(request.object_id)
        return SimpleNamespace(
            object_found=content is not None, object_available=content is not None, object_content=content or b""
        )

    def ConfirmMessageReceived(self, request: Any) -> Any:  # noqa: N802
        """Forget an answer."""
        for number, (_, tree, names) in list(self.replies.items()):
            if tree.object_id == request.message_object_id:
                del self.replies[number]
                for name in names:
                    self.objects.contents.pop(name, None)


def hub_door(count: int, folder: Path) -> None:
    """So many fuzzed answers to a hub: enrolments, then round after round of work."""
    from fedstill.core.shelf import Shelf
    from fedstill.flower.audit import AuditLog
    from fedstill.flower.post import Post
    from fedstill.flower.roster import Roster
    from fedstill.flower.transport import FlowerTransport

    stream, tally = random.Random(2), Tally(Counter())
    sites = tuple(sorted((*HONEST, *(f"rogue-{k:03d}" for k in range(ROGUES)))))
    honest = Honest(folder, sites)
    began, before = time.perf_counter(), memory()
    rounds = max(1, count // ROGUES)
    for t in range(rounds):
        if t % 10 == 0:  # new enrolments now and then
            post: Any = Post(Grid(honest, sites, stream), folder / "runs", AuditLog(folder / "audit.jsonl"))
            roster = Roster(post, "r", ID, json.dumps(honest.plan.plain()))
            roster.call()
            for site in sites:
                if site not in HONEST:
                    tally.note(roster.refused.get(site))
            assert set(HONEST) <= set(roster.enrolled), roster.refused
            roster.enrolled = dict.fromkeys(sites, roster.enrolled["site-a"])
            roster.sites = {site: 100 + k for k, site in enumerate(sites)}
            link = FlowerTransport(post, honest.setting, honest.plan.method, Shelf("x", honest.env.storage), roster)
            continue
        env = honest.env.at(t)
        down = honest.plan.method.download(env, honest.server)
        replies = link.exchange(env, dict.fromkeys(range(len(sites)), down))
        for reply in replies:
            if sites[reply.client] in HONEST:
                assert reply.error is None, reply.error
            else:
                tally.note(reply.error)
    report("hub", tally, time.perf_counter() - began, before)


def report(who: str, tally: Tally, seconds: float, before: float) -> None:
    after = memory()
    ends = ", ".join(f"{count:,} {end}" for end, count in sorted(tally.ends.items()))
    print(
        f"{who:<5} {tally.messages:>9,} messages: {ends}, 0 other ends; memory {before:.0f} MiB before, "
        f"{after:.0f} MiB at most; {1000 * seconds / tally.messages:.1f} ms a message",
        flush=True,
    )
    if after - before > GROWTH:
        raise SystemExit(f"{who}: grew by {after - before:.0f} MiB")


def main() -> None:
    if len(sys.argv) > 2:
        from flwr.supercore.task_identity import TaskIdentity

        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
        doors: Mapping[str, Callable[[int, Path], None]] = {"hub": hub_door, "site": site_door}
        with tempfile.TemporaryDirectory(prefix="fedstill-door-", dir=MEMORY if MEMORY.is_dir() else None) as folder:
            doors[sys.argv[1]](int(sys.argv[2]), Path(folder))
        return
    count = sys.argv[1] if len(sys.argv) > 1 else "100000"
    for door in ("site", "hub"):
        subprocess.run([sys.executable, __file__, door, count], check=True)


if __name__ == "__main__":
    main()
