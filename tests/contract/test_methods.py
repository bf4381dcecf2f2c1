"""What every registered method promises, whatever it computes."""

import pickle
import re
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from smallest import same_bits, small_experiment, small_method, without_shelves

import fedstill as fs
import fedstill.methods
from fedstill.core.errors import RunError, UsageError
from fedstill.core.loop import rounds
from fedstill.core.method import Method, Reply, methods
from fedstill.core.record import Carries, dumps, leaves, loads, sizes
from fedstill.core.shelf import Storage, shelves
from fedstill.core.turn import Party, turn
from fedstill.core.value import build_named, plain
from fedstill.experiment.run import active, resume, start, transport
from fedstill.experiment.rundir import RunDir
from fedstill.experiment.stage import stage
from fedstill.parts.attacks import Attack

EVERY = sorted(methods)
FEDERATED = [name for name in EVERY if methods[name].federated]


def last_state(path: Path) -> Any:
    state, notes = RunDir.open(path).latest()
    assert state is not None
    assert notes == []
    return state


def test_methods_are_the_same_thing_before_and_after_one_is_touched() -> None:
    assert fs.methods is fedstill.methods
    assert fs.methods["fedavg"] is fs.FedAvg is fedstill.methods.fedavg.FedAvg
    assert "fedkf" in fs.methods
    assert list(fs.methods) == list(methods)
    assert len(fs.methods) == len(methods)
    assert {fs.methods: 1}[fedstill.methods] == 1, "still a module like others"


@pytest.mark.parametrize("name", EVERY)
def test_a_method_is_a_value(name: str) -> None:
    method = small_method(name)
    assert pickle.loads(pickle.dumps(method)) == method
    assert replace(method) == method
    assert build_named(Method, plain(method)) == method
    assert method.paper, "its paper is named"
    assert re.fullmatch(r"[a-z0-9-]+", name), "runs are named after it, deployed ones too"


@pytest.mark.parametrize("name", EVERY)
def test_every_field_that_leaves_a_client_says_what_it_carries(name: str) -> None:
    declared = methods[name].leaves_client()
    assert declared
    assert set(declared) == {f.name for f in fields(methods[name]().uploads())}, "at its documented settings"
    assert set(declared.values()) <= set(map(str, Carries))


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("slots", ["server", "client"])
def test_what_a_method_says_of_its_messages_is_what_travels(name: str, slots: str) -> None:
    """Slots on the clients ask for another upload: who cannot make it is refused before anything runs."""
    light = {"clients": 2, "active": 1.0, "samples": 100}
    if slots == "client":
        own = {"gather": {"name": "remember", "slots": "client"}}
        try:
            plan, ready = staged(name, own, **light)
        except UsageError as error:
            reason = str(error)
        else:
            reason = ""
        if reason:
            assert reason.startswith(("gather = remember: ", "unknown setting")), "refused in one line"
            return
    else:
        plan, ready = staged(name, **light)
    method, env = plan.method, ready.env.at(0, 0)
    down = method.download(env, method.init_server(env.at(0)))
    _, upload = turn(method, env, ready.party(0), None, down)
    assert type(down) is method.downloads()
    assert type(upload) is method.uploads() is type(method.template(env))


@pytest.mark.parametrize("name", EVERY)
def test_transports_agree_and_resume_is_exact(name: str, runs: Path) -> None:
    plan = small_experiment(small_method(name))
    start(plan, out=runs, name="inline")
    start(replace(plan, workers="2"), out=runs, name="processes")
    start(replace(plan, workers="threads"), out=runs, name="threads")
    start(replace(plan, rounds=1, workers="2"), out=runs, name="resumed")
    resume(runs / "resumed", rounds=2, workers="inline")
    whole = last_state(runs / "inline")
    for other in ("processes", "threads", "resumed"):
        state = last_state(runs / other)
        assert same_bits(whole.server, state.server), other
        assert list(whole.clients) == list(state.clients)
        assert all(same_bits(whole.clients[k], state.clients[k]) for k in whole.clients), other
    scores = [[row["models"] for row in RunDir.open(runs / n).rows()] for n in ("inline", "processes", "resumed")]
    assert scores[0] == scores[1] == scores[2]
    assert scores[0][-1], "it reports at least one model"


def staged(name: str, own: Any = None, **settings: Any) -> tuple[Any, Any]:
    plan = small_experiment(small_method(name, **(own or {})), **settings)
    return plan, stage(plan, Storage())


@pytest.mark.parametrize("name", EVERY)
def test_a_round_changes_nothing_of_the_states_it_began_with(name: str) -> None:
    """A checkpoint is written while the next round goes on: what it holds must stay as it was."""
    plan, ready = staged(name, clients=2, active=1.0, samples=100)
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []
    with transport(plan, ready, ready.env.shelf("clients")) as link:
        for done in rounds(plan.method, ready.env, link, lambda t: active(plan, t), 2):
            assert all(torch.equal(tensor, copy) for tensor, copy in kept), "a turn wrote into a state"
            for shelf in shelves(done.server):
                shelf.save()
            states = [done.server, *(link.states[k] for k in link.states)]
            kept = [(tensor, tensor.clone()) for state in states for _, tensor in leaves(state)]
    assert kept


@pytest.mark.parametrize("name", EVERY)
def test_bytes_are_those_of_the_messages_and_messages_survive_the_wire(name: str) -> None:
    plan, ready = staged(name)
    with transport(plan, ready, ready.env.shelf("clients")) as link:
        first = next(rounds(plan.method, ready.env, link, lambda t: active(plan, t), 1))
    server = plan.method.init_server(ready.env.at(0))
    down = [plan.method.download(ready.env.at(0, k), server) for k in active(plan, 0)]
    assert sum(first.bytes["down"].values()) == sum(sum(sizes(d).values()) for d in down)
    assert sum(first.bytes["up"].values()) == sum(sum(sizes(r.upload).values()) for r in first.replies) > 0
    for reply in first.replies:
        again = loads(dumps(reply.upload))
        assert type(again) is type(reply.upload)
        assert same_bits(again, reply.upload)


@pytest.mark.parametrize("name", [name for name in EVERY if methods[name].one_download])
def test_a_download_that_is_said_to_be_the_same_for_all_is(name: str) -> None:
    """After a round, so that the server has something to tell; to nobody in particular, and to two clients."""
    plan, ready = staged(name, clients=3, active=1.0, samples=150)
    with transport(plan, ready, ready.env.shelf("clients")) as link:
        server = next(rounds(plan.method, ready.env, link, lambda t: active(plan, t), 1)).server
    for_all, first, second = (plan.method.download(ready.env.at(1, k), server) for k in (None, 0, 2))
    assert same_bits(for_all, first)
    assert same_bits(first, second)


@dataclass(frozen=True)
class Spoiled(Attack):
    """A client that sends what it should not."""

    how: str

    def upload(self, env: Any, upload: Any, *context: Any) -> Any:
        if self.how == "nonsense":
            return Reply(0, 0, None)
        name, tensor = next((n, t) for n, t in leaves(upload) if t.is_floating_point() and t.numel())
        bad = torch.full_like(tensor, float("nan")) if self.how == "nan" else torch.zeros(1, 1)
        if self.how == "huge":
            bad = torch.full_like(tensor, 1e30)
        return _with(upload, name.strip("/").split("/"), bad)


def _with(value: Any, path: list[str], tensor: torch.Tensor) -> Any:
    if not path:
        return tensor
    head, *rest = path
    if isinstance(value, dict):
        key = head if head in value else int(head)
        return {**value, key: _with(value[key], rest, tensor)}
    if isinstance(value, tuple):
        return tuple(_with(v, rest, tensor) if i == int(head) else v for i, v in enumerate(value))
    return replace(value, **{head: _with(getattr(value, head), rest, tensor)})


@pytest.mark.parametrize("name", FEDERATED)
@pytest.mark.parametrize("how", ["nan", "shape", "huge", "nonsense"])
def test_a_bad_reply_is_refused_by_name_and_the_round_goes_on(name: str, how: str) -> None:
    plan, ready = staged(name, active=1.0, rounds=1)
    honest = ready.party
    ready = replace(ready, party=lambda k: Party(honest(k).data, (Spoiled(how),) if k == 2 else ()))
    with transport(plan, ready, ready.env.shelf("clients")) as link:
        done = next(rounds(plan.method, ready.env, link, lambda t: active(plan, t), 1))
    assert set(done.missing) == {2}
    assert done.missing[2].startswith("refused")
    assert [r.client for r in done.replies] == [0, 1, 3, 4, 5]
    for path, tensor in leaves(without_shelves(done.server)):
        assert not tensor.is_floating_point() or torch.isfinite(tensor).all(), path


@pytest.mark.parametrize("name", EVERY)
def test_a_round_without_any_reply_leaves_everything_as_it_was(name: str, runs: Path) -> None:
    plan = small_experiment(small_method(name), drop=1.0, rounds=2)
    with pytest.raises(RunError, match="no reply was used"):
        start(plan, out=runs, name="silent")
    rows = RunDir.open(runs / "silent").rows()
    assert len(rows) == 2
    assert all(set(row["missing"].values()) == {"dropped out"} for row in rows)
    before = plan.method.init_server(stage(plan, Storage()).env.at(0))
    assert same_bits(without_shelves(before), without_shelves(last_state(runs / "silent").server))
