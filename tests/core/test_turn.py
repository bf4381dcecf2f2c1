"""A client's turn and its wrappers: their order, their states, their server's half, and what is told of them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from smallest import same_bits, small_experiment, small_method
from torch import tensor

from fedstill.core.errors import FedstillError, UsageError
from fedstill.core.loop import rounds
from fedstill.core.method import Env, Reply
from fedstill.core.record import Carries, carries, record, sizes
from fedstill.core.shelf import Storage
from fedstill.core.turn import (
    AnyMethod,
    Beside,
    Party,
    Turn,
    Wrapper,
    apart,
    forged,
    ledger,
    method_state,
    received,
    turn,
    wrappers,
)
from fedstill.core.value import setting
from fedstill.experiment.run import active, resume, start, transport
from fedstill.experiment.rundir import RunDir
from fedstill.experiment.stage import stage
from fedstill.methods import FedAvg
from fedstill.parts.attacks import SignFlip
from fedstill.parts.gather import Everyone, Update


@record
class Halves:
    """Weights in half precision."""

    weights: dict[str, torch.Tensor] = carries(Carries.WEIGHTS)


@wrappers.register("test-half")
@dataclass(frozen=True)
class Half(Wrapper):
    """Sends weights in half precision; the server makes them whole again."""

    def misfit(self, method: AnyMethod, upload: type) -> str | None:
        return None if upload is Update else f"halves weights, not a {upload.__name__}"

    def around(self, method: AnyMethod, turn: Turn) -> Turn:
        def halved(env: Env, state: Any, down: Any, data: Any) -> tuple[Any, Any]:
            state, upload = turn(env, state, down, data)
            return state, Halves({n: t.half() for n, t in upload.weights.items()})

        return halved

    def uploads(self, upload: type) -> type:
        return Halves

    def effects(self, upload: type) -> Mapping[str, str]:
        return {"weights": "in half precision"}

    def opened(self, env: Env, upload: Any) -> Update:
        if not isinstance(upload, Halves):
            raise FedstillError(f"a {type(upload).__name__} instead of Halves")
        return Update({n: t.float() for n, t in upload.weights.items()})


@record
class Turns:
    """How many turns a client has had, and a sum of what it has sent."""

    count: int
    total: torch.Tensor


@wrappers.register("test-count")
@dataclass(frozen=True)
class Count(Wrapper):
    """Adds a small number to every weight, growing with the client's turns; keeps count beside the method's state."""

    step: float = setting(0.5, gt=0)

    def around(self, method: AnyMethod, turn: Turn) -> Turn:
        def counted(env: Env, state: Any, down: Any, data: Any) -> tuple[Any, Any]:
            own, inner = apart(state)
            own = own or Turns(0, torch.zeros(()))
            inner, upload = turn(env, inner, down, data)
            shift = self.step * (own.count + 1)
            moved = {n: t + shift for n, t in upload.weights.items()}
            total = own.total + sum(t.sum() for t in moved.values())
            return Beside(Turns(own.count + 1, total), inner), replace(upload, weights=moved)

        return counted

    def effects(self, upload: type) -> Mapping[str, str]:
        return {"weights": f"moved by {self.step}"}


def once(chain: tuple[Wrapper, ...]) -> tuple[Any, Any, Any]:
    """One client's turn with these wrappers, and the turn without."""
    plan = small_experiment(FedAvg(gather=Everyone(), batch=32, epochs=1))
    ready = stage(plan, Storage())
    env = ready.env.at(0, 1)
    down = plan.method.download(env, plan.method.init_server(env))
    _, plain = turn(plan.method, env, Party(ready.party(1).data), None, down)
    state, upload = turn(plan.method, env, Party(ready.party(1).data, chain), None, down)
    return state, upload, plain


def test_wrappers_stand_around_a_turn_innermost_first() -> None:
    """(count, half): w + 0.5, then halved; and the client trains on the same batches as without them."""
    state, upload, plain = once((Count(), Half()))
    assert isinstance(upload, Halves)
    for name, tensor_ in plain.weights.items():
        assert torch.equal(upload.weights[name], (tensor_ + 0.5).half())
    assert isinstance(state, Beside)
    assert state.own.count == 1
    assert method_state(state) is None, "FedAvg itself keeps nothing"


def test_the_server_opens_the_outermost_first_and_names_what_it_cannot_read() -> None:
    env = stage(small_experiment("fedavg"), Storage()).env.at(0)
    replies: list[Reply[Any]] = [
        Reply(0, 5, Halves({"w": tensor([1.5]).half()})),
        Reply(1, 5, Update({"w": tensor([1.5])})),
        Reply(2, 5, None, error="dropped out"),
        Reply(3, 5, Halves(None)),  # type: ignore[arg-type]
    ]
    found = received((Count(), Half()), env, replies)
    assert found[0].upload.weights["w"].tolist() == [1.5]
    assert found[1].error == "refused: a Update instead of Halves"
    assert found[2].error == "dropped out"
    assert found[3].error is not None
    assert found[3].error.startswith("refused: AttributeError")


def test_bytes_are_those_of_what_left_and_the_server_averages_what_was_opened() -> None:
    """Half precision: half the bytes of the Update."""
    plan = small_experiment(FedAvg(gather=Everyone(), batch=32, epochs=1), wrappers="test-half", rounds=1)
    ready = stage(plan, Storage())
    with transport(plan, ready, ready.env.shelf("clients")) as link:
        done = next(rounds(plan.method, ready.env, link, lambda t: active(plan, t), 1, wrappers=plan.wrappers))
    assert done.missing == {}
    assert all(type(r.upload) is Update for r in done.replies)
    whole = sum(sizes(r.upload)["weights"] for r in done.replies)
    assert done.bytes["up"] == {"weights": whole // 2}


def test_the_ledger_says_what_leaves_and_what_was_done_to_it() -> None:
    assert ledger(FedAvg(), (Count(step=0.25), Half())) == {
        "weights": "model weights; moved by 0.25; in half precision"
    }


def test_an_attack_stands_outside_all_that_keeps_the_form_and_inside_what_does_not() -> None:
    attack = SignFlip()
    assert forged(FedAvg(), (Count(), Half()), attack) == (Count(), attack, Half())
    assert forged(FedAvg(), (Count(),), attack) == (Count(), attack)
    plan = small_experiment("fedavg", wrappers="test-half", attack="sign-flip", malicious=0.5)
    parties = stage(plan, Storage()).party
    assert [w.wrappers for w in (parties(0), parties(1))] == [(Half(),), (attack, Half())]


def test_a_wrapper_that_does_not_fit_is_refused_before_anything_runs() -> None:
    with pytest.raises(UsageError, match=r"^wrappers = test-half: halves weights, not a PublicLogits$"):
        small_experiment(small_method("fedmd"), wrappers="test-half")
    with pytest.raises(UsageError, match=r"^wrappers = test-half: halves weights, not a Halves$"):
        small_experiment("fedavg", wrappers=("test-half", "test-half"))
    with pytest.raises(UsageError, match=r"^unknown wrapper 'test-haf'; did you mean test-half\?"):
        small_experiment("fedavg", wrappers="test-haf")


def test_a_wrappers_state_is_kept_resumed_and_the_same_on_every_transport(runs: Path) -> None:
    """Clients' own models (FedRAD's) are read from beside the wrapper's state; counts go on after a resume."""
    chain = [{"name": "test-count", "step": 0.001}]
    plan = small_experiment(small_method("fedrad"), wrappers=chain, active=1.0)
    assert json.loads(json.dumps(plan.plain()))["wrappers"] == chain
    start(plan, out=runs, name="inline")
    start(replace(plan, workers="2"), out=runs, name="processes")
    start(replace(plan, rounds=1, workers="2"), out=runs, name="resumed")
    resumed = resume(runs / "resumed", rounds=2, workers="inline")
    states = [RunDir.open(runs / name).latest()[0] for name in ("inline", "processes", "resumed")]
    assert all(state is not None for state in states)
    whole: Any = states[0]
    assert {whole.clients[k].own.count for k in whole.clients} == {2}
    for other in states[1:]:
        assert same_bits(whole.server, other.server)  # type: ignore[union-attr]
        assert all(same_bits(whole.clients[k], other.clients[k]) for k in whole.clients)  # type: ignore[union-attr]
    assert "personal" in resumed.rows[-1]["models"]
