"""Asynchronous rounds: the same bits as synchronous ones where the maths says so, and after a resume."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from smallest import same_bits, small_experiment, small_method

from fedstill.core.errors import UsageError
from fedstill.core.method import Late, Reply
from fedstill.core.record import State
from fedstill.core.shelf import Storage
from fedstill.core.turn import turn
from fedstill.experiment.audit import audit
from fedstill.experiment.config import experiment
from fedstill.experiment.run import resume, start
from fedstill.experiment.rundir import Checkpoint, RunDir
from fedstill.experiment.stage import stage
from fedstill.experiment.watcher import StopRun, Watcher
from fedstill.flower.enrolment import deployable
from fedstill.methods import FedAvg
from fedstill.parts.gather import Update, caught_up
from fedstill.parts.pace import Async, patient

UNEVEN = {"name": "async", "buffer": 2, "speeds": {"name": "log-normal", "sigma": 1.0, "jitter": 0.2}}


def last(path: Path) -> Checkpoint:
    state, notes = RunDir.open(path).latest()
    assert state is not None
    assert notes == []
    return state


def ended(path: Path) -> Mapping[str, Any]:
    """Everything of a run that must be the same when its bits are."""
    state = last(path)
    rows = RunDir.open(path).rows()
    clients = {k: state.clients[k] for k in sorted(state.clients)}
    return {"server": state.server, "clients": clients, "flight": state.flight, "rows": [_timeless(r) for r in rows]}


def _timeless(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("round", "active", "missing", "models", "bytes", "pace") if name in row}


def assert_same(one: Path, other: Path) -> None:
    left, right = ended(one), ended(other)
    assert left["rows"] == right["rows"]
    assert all(same_bits(left[part], right[part]) for part in ("server", "clients", "flight"))


@pytest.mark.parametrize("method", patient())
def test_with_equal_speeds_and_a_buffer_for_all_active_it_is_the_synchronous_run(method: str, runs: Path) -> None:
    """Nobody is late, all who start together arrive together: every step is a round, to the bit."""
    plan = small_experiment(small_method(method), drop=0.2)
    start(plan, out=runs, name="sync")
    pace = {"name": "async", "buffer": 3, "speeds": "equal"}
    start(small_experiment(small_method(method), drop=0.2, pace=pace), out=runs, name="async")
    usual, buffered = ended(runs / "sync"), ended(runs / "async")
    assert [{k: v for k, v in row.items() if k != "pace"} for row in buffered["rows"]] == usual["rows"]
    assert [row["pace"]["time"] for row in buffered["rows"]] == [1.0, 2.0]
    assert same_bits(buffered["server"], usual["server"])
    assert same_bits(buffered["clients"], usual["clients"])
    assert not buffered["flight"].replies


def test_a_clock_beside_synchronous_rounds_changes_no_bits(runs: Path) -> None:
    start(small_experiment(small_method("fedkf")), out=runs, name="plain")
    start(small_experiment(small_method("fedkf"), pace="sync"), out=runs, name="timed")
    plain, timed = ended(runs / "plain"), ended(runs / "timed")
    assert same_bits(plain["server"], timed["server"])
    assert [{k: v for k, v in row.items() if k != "pace"} for row in timed["rows"]] == plain["rows"]
    slowest = [max(arrives for _, arrives in row["pace"]["started"]) for row in timed["rows"]]
    assert [row["pace"]["time"] for row in timed["rows"]] == slowest


def test_late_replies_step_from_the_servers_model_as_far_as_they_count() -> None:
    """w = 10. The first reply is w_A = 12 with one sample, on time. The second, three samples, started from 2, came to
    5, and is three steps late: it counts (1 + 3)^−½ = ½, so it stands for 10 + ½ (5 − 2) = 11.5. Their mean is
    (12 + 3 · 11.5)/4 = 11.625. T1 keeps the model itself: ŵ = (1 · 12 + 3 · 5)/4 = 6.75.
    """
    late = Late(3, {"w": torch.tensor([2.0])}, Async().weight(3))
    replies = [
        Reply(0, 1, Update({"w": torch.tensor([12.0])})),
        Reply(1, 3, Update({"w": torch.tensor([5.0])}), late=late),
    ]
    moved = caught_up(replies, {"w": torch.tensor([10.0])})
    assert [float(r.upload.weights["w"]) for r in moved] == [12.0, 11.5]
    env = stage(small_experiment(FedAvg(), clients=2, active=2), Storage()).env
    env = replace(env, sizes=(1, 3))
    first = FedAvg().init_server(env)
    memory = FedAvg().gather.init(env, {"w": torch.tensor([0.0])})
    after = FedAvg().server(env, replace(first, weights={"w": torch.tensor([10.0])}, memory=memory), replies)
    assert float(after.weights["w"]) == 11.625
    assert float(FedAvg().models(env, after)["overall"]["w"]) == 6.75


def test_statistics_of_batchnorm_are_taken_as_a_late_client_has_them() -> None:
    """A variance that fell from 2 to .1 while the server's fell to .5 would be carried on to .5 + ½ (.1 − 2) < 0."""
    names = ("w", "0.running_var", "0.running_mean", "0.num_batches_tracked")
    start = {name: torch.tensor([2.0]) for name in names[:3]} | {names[3]: torch.tensor(7)}
    trained = {name: torch.tensor([0.1]) for name in names[:3]} | {names[3]: torch.tensor(9)}
    server = {name: torch.tensor([0.5]) for name in names[:3]} | {names[3]: torch.tensor(30)}
    reply = Reply(0, 1, Update(trained), late=Late(3, start, Async().weight(3)))
    (moved,) = caught_up([reply], server)
    weights = moved.upload.weights
    assert [round(float(weights[name]), 4) for name in names] == [-0.45, 0.1, 0.1, 9.0]


def test_an_asynchronous_run_with_batchnorm_learns(runs: Path) -> None:
    method = small_method("fedavg", lr=0.05)
    plan = small_experiment(method, model="resnet8-pooled-bn", rounds=6, evaluate_every=6, pace=UNEVEN)
    result = start(plan, out=runs, name="run")
    variances = [w for name, w in ended(runs / "run")["server"].weights.items() if name.endswith("running_var")]
    assert variances
    assert all(float(variance.min()) >= 0 for variance in variances)
    assert result.health.well


def test_a_run_is_what_the_recorded_order_of_arrival_makes_of_it(runs: Path) -> None:
    """FedBuff written once more, from its algorithm alone, over the starts and arrivals that the run wrote down."""
    plan = small_experiment(small_method("fedavg", lr=0.1), rounds=6, pace=UNEVEN)
    start(plan, out=runs, name="run")
    rows = RunDir.open(runs / "run").rows()
    ready = stage(plan, Storage())
    weights: State = ready.env.initial()
    begun: dict[int, tuple[int, State, State]] = {}
    lateness = []
    for t, row in enumerate(rows):
        for client, _ in row["pace"]["started"]:
            down = plan.method.download(ready.env.at(t), replace(plan.method.init_server(ready.env), weights=weights))
            _, upload = turn(plan.method, ready.env.at(t, client), ready.party(client), None, down)
            begun[client] = (t, weights, upload.weights)
        step = {name: torch.zeros_like(w, dtype=torch.float64) for name, w in weights.items()}
        heard = [client for client, _ in row["pace"]["arrived"]]
        samples = sum(ready.env.sizes[k] for k in heard)
        for client in heard:
            since, before, trained = begun.pop(client)
            lateness.append(t - since)
            for name in step:
                way = (trained[name].double() - before[name].double()) / (1 + t - since) ** 0.5
                step[name] += ready.env.sizes[client] / samples * way
        weights = {name: (w.double() + step[name]).float() for name, w in weights.items()}
    final = last(runs / "run").server.weights
    assert max(lateness) > 1
    assert max(float((final[name] - weights[name]).abs().max()) for name in final) < 1e-6


@pytest.mark.parametrize(
    ("method", "settings", "more"),
    [
        ("fedkf", {}, {}),
        ("fedavg", {"gather": {"name": "remember", "slots": "client"}}, {"drop": 0.3, "checkpoint_every": 2}),
        ("fedprox", {}, {"wrappers": [{"name": "quantise", "width": 8}]}),
    ],
)
def test_it_resumes_to_the_same_bits_by_replaying_who_arrived(
    method: str, settings: dict[str, Any], more: dict[str, Any], runs: Path
) -> None:
    """Stopped after five of eight steps, with replies under way; the last checkpoint may be a step older."""

    class Stop(Watcher):
        def round(self, row: Mapping[str, Any]) -> None:
            if row["round"] == 5:
                raise StopRun("enough")

    plan = small_experiment(small_method(method, **settings), rounds=8, pace=UNEVEN, **more)
    start(plan, out=runs, name="whole")
    start(plan, out=runs, name="stopped", watcher=Stop())
    stopped = last(runs / "stopped")
    assert stopped.flight is not None
    assert stopped.flight.replies
    if more.get("checkpoint_every"):  # a line more than the checkpoint knows of, as after a power cut
        (runs / "stopped" / "checkpoints" / "000005.safetensors").unlink()
        (runs / "stopped" / "result.json").unlink()
    resume(runs / "stopped")
    assert_same(runs / "whole", runs / "stopped")


def test_more_steps_go_on_where_a_finished_run_ended(runs: Path) -> None:
    start(small_experiment(small_method("fedavg"), rounds=7, pace=UNEVEN), out=runs, name="long")
    start(small_experiment(small_method("fedavg"), rounds=3, pace=UNEVEN), out=runs, name="short")
    resume(runs / "short", rounds=7)
    assert_same(runs / "long", runs / "short")


def test_worker_processes_change_no_bits(runs: Path) -> None:
    for workers in ("inline", "2"):
        start(small_experiment(small_method("fedkf"), rounds=4, pace=UNEVEN, workers=workers), out=runs, name=workers)
    assert_same(runs / "inline", runs / "2")


def test_bytes_go_up_when_a_reply_arrives(runs: Path) -> None:
    rows = start(small_experiment(small_method("fedavg"), rounds=5, pace=UNEVEN), out=runs, name="run").rows
    one = rows[0]["bytes"]["up"]["weights"] // 2
    for row in rows:
        assert row["bytes"]["up"] == {"weights": 2 * one}
        assert row["bytes"]["down"].get("weights", 0) == len(row["pace"]["started"]) * one


@dataclass(frozen=True)
class Judged(FedAvg):
    """Another server, which does not say that it can use late replies."""

    def server(self, env: Any, server: Any, replies: Any) -> Any:
        return super().server(env, server, replies)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "scaffold"}, r"pace = async: scaffold cannot use late replies; these methods can: fedavg, "),
        ({"method": {"name": "fedavg", "gather": "krum"}}, r"pace = async: gather = krum compares replies"),
        (
            {"method": {"name": "fedavg", "gather": {"name": "chain", "gathers": ["median", "remember"]}}},
            r"pace = async: gather = median compares replies",
        ),
        ({"wrappers": [{"name": "secure-sums"}]}, r"pace = async: wrappers: secure-sums reads the replies of one"),
        ({"attack": "alie", "malicious": "0.2"}, r"pace = async: attack = alie: its"),
        ({"pace": {"name": "async", "buffer": 21}}, r"pace = async: buffer = 21: there are only 20 clients"),
        (
            {"pace": {"name": "async", "speeds": {"name": "given", "turns": [1, 2]}}},
            r"pace = async: speeds.turns has 2 entries for 20 clients",
        ),
        (
            {"pace": {"name": "async", "buffer": 21}, "wrappers": [{"name": "quantise"}]},
            r"pace = async: buffer = 21: there are only 20 clients",
        ),
        ({"pace": "asinc"}, r"unknown pace 'asinc'; did you mean async\? known: async, sync"),
    ],
)
def test_what_cannot_be_asynchronous_is_one_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        experiment({"pace": "async", **settings})
    assert "\n" not in str(error.value)


def test_a_server_that_is_overridden_says_again_that_it_can_use_late_replies() -> None:
    assert FedAvg.late_replies
    assert not Judged.late_replies
    assert {"fedavg", "fedprox", "fedkf", "fednova"} <= set(patient())
    assert not {"feddyn", "scaffold", "q-ffl", "fedmd", "fedsteady"} & set(patient())


def test_the_page_names_the_methods_that_can_use_late_replies() -> None:
    page = (Path(__file__).parents[2] / "docs" / "pace.md").read_text()
    words = page.partition("(`late_replies`): ")[2].partition(". ")[0]
    assert sorted(words.replace("`", "").replace("\n", " ").split(", ")) == patient()


def test_a_pace_cannot_be_deployed() -> None:
    with pytest.raises(UsageError, match="pace = async: sites have speeds of their own"):
        deployable(experiment({"pace": "async"}))


def test_an_audit_of_overlapping_rounds_is_refused(runs: Path) -> None:
    start(small_experiment(small_method("fedavg"), pace=UNEVEN), out=runs, name="run")
    with pytest.raises(UsageError, match="an audit reads the uploads of one round, and this run's rounds overlap"):
        audit(runs / "run")


def test_privacy_counts_the_turns_that_the_timetable_has() -> None:
    """One reply a step and equal speeds, all three train: in six steps each client starts twice, after 3 and 6."""
    plan = experiment(
        {"clients": 3, "active": 3, "rounds": 6, "pace": {"name": "async", "buffer": 1, "speeds": "equal"}}
    )
    assert plan.most_turns == 2
    assert experiment({"clients": 3, "active": 3, "rounds": 6}).most_turns == 6
    longer = {"name": "async", "buffer": 1, "speeds": {"name": "equal", "by_samples": True}}
    assert experiment({"clients": 3, "active": 3, "rounds": 6, "pace": longer}).most_turns == 6
