"""Client-level privacy and secure sums around whole runs."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from smallest import same_bits, small_experiment, small_method

pytest.importorskip("dp_accounting")
pytest.importorskip("Crypto")

from fedstill.core.errors import UsageError
from fedstill.core.method import Reply
from fedstill.core.shelf import Storage
from fedstill.core.turn import Party, ledger, turn
from fedstill.experiment.config import experiment
from fedstill.experiment.run import resume, start
from fedstill.experiment.rundir import RunDir
from fedstill.experiment.shorthand import wrapped
from fedstill.experiment.stage import stage
from fedstill.parts.accounting import client_noise
from fedstill.parts.averaging import Broadcast
from fedstill.parts.client_privacy import PrivateClients
from fedstill.parts.gather import Changed, Everyone, LastUpload, Remember, Update
from fedstill.parts.secure_sums import SecureSums
from fedstill.parts.sums import vector


def private(method: str = "fedavg", rounds: int = 2, **settings: Any) -> Any:
    wrapper = {"name": "private-clients", "noise": 1e-9, **settings}
    return small_experiment(small_method(method), rounds=rounds, wrappers=[wrapper])


def test_an_upload_is_clipped_around_the_weights_that_came_down() -> None:
    """The step from w and the change of the slot together have the norm `clip`, and keep their direction.

    In a first turn the slot holds w⁰ = w: step and change are the same s, so the two together are √2 ‖s‖ long and each
    is brought to clip/√2.
    """
    plan = private(clip=0.01)
    ready = stage(plan, Storage())
    env = ready.env.at(0, 1)
    down = plan.method.download(env, plan.method.init_server(ready.env))
    _, free = turn(plan.method, env, Party(ready.party(1).data), None, down)
    state, sent = turn(plan.method, env, ready.party(1), None, down)
    step = {n: (w - down.weights[n]).double() for n, w in free.weights.items()}
    norm = math.sqrt(sum(float(s.square().sum()) for s in step.values()))
    assert norm > 0.01
    for name, moved in step.items():
        assert torch.allclose(sent.change[name], moved * 0.01 / (math.sqrt(2) * norm), atol=1e-8)
    assert isinstance(state, LastUpload)
    assert all(torch.allclose(state.weights[n], down.weights[n] + sent.change[n].float(), atol=1e-6) for n in step), (
        "the client's slot is where the server's sum has it"
    )


def test_noise_of_the_right_scale_is_added_once_to_the_sum() -> None:
    """Two clients send zeros; σ = 3, clip 2: the sum has 3 · 2 · 2 = 12 on 10,000 numbers, the mean half of it."""
    wrapper = PrivateClients(noise=3.0, clip=2.0, clients=2, active=2)
    plan = small_experiment(small_method("fedavg"))
    env = stage(plan, Storage()).env
    replies = [Reply(k, 9, Update({"w": torch.zeros(10_000)})) for k in (0, 1)]
    out = wrapper.received(env, replies)
    drawn = vector(out[0].upload)
    assert float(drawn.std()) == pytest.approx(6, rel=0.03)
    assert same_bits(out[0].upload, out[1].upload)
    assert out[0].samples == out[1].samples, "a weight by samples would tell of a client"
    other = wrapper.received(env, [replies[0], replace(replies[1], upload=Update({"w": torch.ones(10_000)}))])
    assert abs(float(torch.corrcoef(torch.stack([drawn, vector(other[0].upload)]))[0, 1])) < 0.05, "other noise"


def test_noise_shared_among_clients_adds_up_to_as_much() -> None:
    """Three of three clients are certain: each adds σ · 2 clip/√3, and the server adds none."""
    noisy_clients = {"name": "private-clients", "noise": 2.0, "clip": 0.5, "shared": 1.0}
    sums = {"name": "secure-sums", "threshold": 1.0, "by_samples": False}
    plan = small_experiment(small_method("fedavg"), wrappers=[noisy_clients, sums])
    ready = stage(plan, Storage())
    down = plan.method.download(ready.env, plan.method.init_server(ready.env))
    exact = replace(plan.wrappers[0], noise=1e-12)
    noise = []
    for k in range(3):
        env, data = ready.env.at(0, k), ready.party(k).data
        noisy, plain = (turn(plan.method, env, Party(data, (w,)), None, down)[1] for w in (plan.wrappers[0], exact))
        noise.append(vector(noisy) - vector(plain))
    assert float(noise[0].std()) == pytest.approx(2 / math.sqrt(3), rel=0.05)
    assert float(torch.stack(noise).sum(0).std()) == pytest.approx(2, rel=0.05)
    replies = [Reply(k, 1, Update({"w": torch.full((3,), float(k))})) for k in (0, 1)]
    assert vector(plan.wrappers[0].received(ready.env, replies)[0].upload).tolist() == [0.5] * 3


@pytest.mark.parametrize("clip", [100.0, 0.05])
def test_the_overall_model_is_the_mean_of_all_slots_as_the_clients_know_them(clip: float, tmp_path: Path) -> None:
    """ŵ = Σ_k slot_k / 6, every client alike, w⁰ for those not seen; slots move by what was left of the change."""
    plan = private("fedkf", rounds=3, clip=clip)
    assert isinstance(plan.method.gather, Remember)
    assert plan.method.gather.slots == "client"
    start(plan, out=tmp_path, name="run")
    checkpoint, _ = RunDir.open(tmp_path / "run").latest()
    assert checkpoint is not None
    env = stage(plan, Storage()).env
    slots = [checkpoint.clients[k].kept.weights if k in checkpoint.clients else env.initial() for k in range(6)]
    overall = plan.method.models(env, checkpoint.server)["overall"]
    for name, weight in overall.items():
        assert torch.allclose(weight, torch.stack([slot[name] for slot in slots]).mean(0), atol=1e-5)


def test_epsilon_is_found_for_all_rounds_and_ends_the_run() -> None:
    plan = experiment({**private(rounds=2).plain(), "wrappers": [{"name": "private-clients", "epsilon": 4.0}]})
    noise = plan.wrappers[0]
    assert (noise.clients, noise.active) == (6, 3)
    result = start(plan, out=None)
    assert result.rows[-1]["facts"]["epsilon_clients"] == pytest.approx(4, rel=0.02)
    longer = experiment({**plan.plain(), "rounds": 3})
    assert longer.wrappers[0].noise == noise.noise, "noise is settled once"
    last = start(longer, out=None).rows[-1]
    assert all("privacy: ε = 4 would be exceeded" in why for why in last["missing"].values())


def test_a_resumed_run_and_another_number_of_workers_have_the_same_noise(tmp_path: Path) -> None:
    """Two rounds at once, in two worker processes, or one and then the other: the same bits, and ε counted once."""
    noise = {"name": "private-clients", "noise": 1.0, "clip": 0.1}

    def plan(**settings: Any) -> Any:
        return small_experiment(small_method("fedavg"), wrappers=[noise], **settings)

    whole = start(plan(), out=tmp_path, name="whole")
    start(plan(workers="2"), out=tmp_path, name="workers")
    start(plan(rounds=1), out=tmp_path, name="parts")
    parts = resume(tmp_path / "parts", rounds=2)
    ends = [RunDir.open(tmp_path / name).latest()[0] for name in ("whole", "workers", "parts")]
    assert all(end is not None and same_bits(ends[0].server, end.server) for end in ends)  # type: ignore[union-attr]
    assert whole.rows[-1]["facts"]["epsilon_clients"] == parts.rows[-1]["facts"]["epsilon_clients"] > 0


def test_where_it_is_no_secret_who_takes_part_sampling_saves_nothing() -> None:
    """3 of 6 clients, hidden, need less noise. A hub that sums blindly knows whom it asked, and sites know the seed:
    there ε is that of the Gaussian mechanism in every round.
    """

    def settled(**settings: Any) -> PrivateClients:
        wrapper = PrivateClients(epsilon=4.0, **settings)
        return wrapper.settled(small_method("fedavg"), 6, 3, 10, 10)

    hidden, known = settled(), settled(hidden=False)
    assert hidden.noise < 0.9 * known.noise
    assert known.noise == settled(shared=2 / 3).noise == client_noise(4.0, 6, 6, 10, 1e-5)
    assert PrivateClients(epsilon=4.0).deployed().hidden is False
    assert known.spent(10) == pytest.approx(4, rel=0.02)


def replies_of(*norms: float) -> list[Reply[Any]]:
    """Clients whose updates have these norms, all in the first of 10,000 numbers."""
    form, down = Update({"w": torch.zeros(10_000)}), Broadcast({"w": torch.zeros(10_000)})
    made = []
    for k, norm in enumerate(norms):
        step = torch.zeros(10_000)
        step[0] = norm
        made.append(Reply(k, 1, Update({"w": step}), down=down, form=form))
    return made


def test_a_clip_finds_the_quantile_of_the_norms() -> None:
    """Norms 1 to 9 times 0.1, hardly any noise, γ = .5, six steps from 5. At first all nine are below: C halves by
    e^−.5 each time: 3.03, 1.84, 1.12, .677 (six of nine: × e^−.167) .573, (five: × e^−.056) .542.
    """
    wrapper = PrivateClients(noise=1e-9, clip=5.0, quantile=0.5, clients=9, active=9)
    env = stage(small_experiment("fedavg"), Storage()).env
    clip = wrapper.found_clip(env, replies_of(*(0.1 * k for k in range(1, 10))))
    assert clip == pytest.approx(5 * math.exp(-4 * 0.5 - 1 / 6 - 1 / 18), rel=1e-6)
    mean = vector(wrapper.received(env, replies_of(*(0.1 * k for k in range(1, 10))))[0].upload)
    assert float(mean[0]) == pytest.approx((0.1 + 0.2 + 0.3 + 0.4 + 0.5 + 4 * clip) / 9, rel=1e-5)


def test_the_counts_that_find_a_clip_are_paid_for() -> None:
    """σ = 3: counts get 3 √(6/.2), the sum 3/√.8 times 2C; 1/σ² is the sum of all six counts' and the sum's. Measured
    on 10,000 numbers, and on 400 rounds' counts.
    """
    wrapper = PrivateClients(noise=3.0, clip=1.0, quantile=0.5, clients=2, active=2)
    assert 6 / wrapper.count_std**2 + (2.0 / wrapper.std(1.0)) ** 2 == pytest.approx(1 / 9)
    env = stage(small_experiment("fedavg"), Storage()).env
    replies = replies_of(0.5, 0.5)
    clip = wrapper.found_clip(env, replies)
    drawn = vector(wrapper.received(env, replies)[0].upload)[1:]
    assert float(drawn.std()) == pytest.approx(3 / math.sqrt(0.8) * 2 * clip / 2, rel=0.03)
    counts = [wrapper.draw(env.at(t), wrapper.count_std, 6, [], "counts") for t in range(400)]
    assert float(torch.cat(counts).std()) == pytest.approx(3 * math.sqrt(30), rel=0.06)


def test_a_clip_that_only_the_server_knows_allows_no_slots_on_clients_and_no_blind_sums() -> None:
    with pytest.raises(UsageError, match="clients can keep no slots; set gather=everyone"):
        private(quantile=0.5)
    plan = small_experiment(
        small_method("fedavg", gather={"name": "everyone"}), wrappers=wrapped("clients,epsilon=8,quantile=0.5")
    )
    assert start(plan, out=None).rows[-1]["facts"]["epsilon_clients"] <= 8
    assert "clipped to the 0.5 quantile of the norms" in ledger(plan.method, plan.wrappers)["weights"]
    everyone = small_method("fedavg", gather={"name": "everyone"})
    with pytest.raises(UsageError, match="a server that sees sums only cannot look at norms"):
        small_experiment(everyone, wrappers=wrapped("clients,epsilon=8,quantile=0.5", secure_sums=True))


def test_shared_noise_needs_as_many_in_the_sum_as_it_counts_on() -> None:
    noisy = {"name": "private-clients", "noise": 1.0, "shared": 0.9}
    for chain in ([noisy], [noisy, {"name": "secure-sums", "threshold": 0.7, "by_samples": False}]):
        with pytest.raises(UsageError, match=r"shared = 0\.9: needs secure-sums with threshold ≥ 0\.9"):
            small_experiment(small_method("fedavg"), wrappers=chain)


def test_secure_sums_by_samples_would_let_one_client_move_more_than_its_clip() -> None:
    noisy = {"name": "private-clients", "noise": 1.0}
    for sums in ({"name": "secure-sums"}, {"name": "secure-sums", "by_samples": True}):
        with pytest.raises(UsageError, match="clients must count alike, or one moves the sum by more than its clip"):
            small_experiment(small_method("fedavg"), wrappers=[noisy, sums])
    plan = small_experiment(small_method("fedavg"), wrappers=[noisy, {"name": "secure-sums", "by_samples": False}])
    assert experiment(plan.plain()) == plan


def test_samples_and_clients_have_each_their_own_delta() -> None:
    pytest.importorskip("opacus")
    both = [
        {"name": "private-samples", "epsilon": 8.0, "delta": 1e-3},
        {"name": "private-clients", "epsilon": 4.0, "delta": 1e-5},
    ]
    facts = start(small_experiment(small_method("fedavg"), wrappers=both), out=None).rows[-1]["facts"]
    assert (facts["delta"], facts["delta_clients"]) == (1e-3, 1e-5)


def test_privacy_of_both_kinds_is_asked_for_by_two_words() -> None:
    samples, clients, sums = wrapped(["clients,epsilon=4", "epsilon=8"], secure_sums=True)
    assert (samples["name"], samples["epsilon"]) == ("private-samples", "8")
    assert (clients["name"], clients["shared"], sums["by_samples"]) == ("private-clients", 2 / 3, False)


def test_a_sum_over_one_client_is_refused_and_no_threshold_leaves_one() -> None:
    with pytest.raises(UsageError, match="active = 1: the sum would be one client's own upload; must be at least 2"):
        secure(active=0.25, clients=4)
    assert [SecureSums(threshold=0.51).needed(clients) for clients in (1, 2, 3, 4)] == [2, 2, 2, 3]


def test_the_runs_own_clients_count_whatever_a_plan_said_before() -> None:
    """A deployed run learns how many sites there are when they enrol: shared noise must add up among these."""
    planned = small_experiment(small_method("fedavg"), wrappers=wrapped("clients,epsilon=4", secure_sums=True))
    fewer = experiment({**planned.plain(), "clients": 4, "active": 1.0})
    assert [(w.active) for w in planned.wrappers] == [3, 3]
    assert [(w.active) for w in fewer.wrappers] == [4, 4]


def test_a_delta_as_large_as_one_client_is_refused() -> None:
    with pytest.raises(UsageError, match=r"delta = 0\.2: must be < 1/6"):
        private(delta=0.2)


@pytest.mark.parametrize("wrapper", [{"name": "private-clients", "noise": 1e-9}, {"name": "secure-sums"}])
def test_an_upload_that_is_not_finite_is_refused_and_does_not_spoil_the_sum(wrapper: dict[str, Any]) -> None:
    plan = small_experiment(small_method("fedavg", gather={"name": "everyone"}), wrappers=[wrapper])
    env = stage(plan, Storage()).env
    form = Update({"w": torch.zeros(2)})
    sent = [torch.ones(2), torch.tensor([float("nan"), 0.0]), torch.ones(2), torch.ones(2)]
    down = Broadcast({"w": torch.ones(2)})
    replies = [Reply(k, 1, Update({"w": w}), down=down, form=form) for k, w in enumerate(sent)]
    out = replace(plan.wrappers[0], active=4).received(env, replies)
    assert out[1].error == "refused: /weights/w has values that are not finite or too large (nan)"
    assert all(torch.allclose(r.upload.weights["w"], torch.ones(2), atol=1e-6) for r in out if r.error is None)
    assert [r.client for r in out if r.error is None] == [0, 2, 3]


def test_a_server_that_needs_more_than_sums_is_refused_by_what_it_needs() -> None:
    with pytest.raises(UsageError, match="the server of this method needs every client's own upload"):
        private("feddf")
    chained = small_method("fedavg", gather={"name": "trimmed-mean"})
    with pytest.raises(UsageError, match="the gather looks at single uploads"):
        small_experiment(chained, wrappers=[{"name": "secure-sums"}])


def test_sums_that_would_be_read_wrongly_are_refused() -> None:
    """Who is new counts with all its weights, who is known with their change: a mean of both is neither."""
    seen = small_method("fedavg", gather={"name": "remember", "start": "seen"})
    with pytest.raises(UsageError, match="start = seen: from sums nobody can tell who is new"):
        small_experiment(seen, wrappers=[{"name": "secure-sums"}])
    with pytest.raises(UsageError, match="the server of this method needs every client's own upload"):
        secure("fedmgda-plus")


def test_fedrads_sums_count_as_its_mean_does() -> None:
    for weighting in ("mean", "samples"):
        plan = small_experiment(small_method("fedrad", weighting=weighting), wrappers=[{"name": "secure-sums"}])
        assert plan.wrappers[0].by_samples is (weighting == "samples")


def secure(method: str = "fedavg", **settings: Any) -> Any:
    return small_experiment(small_method(method), rounds=3, wrappers=[{"name": "secure-sums"}], **settings)


@pytest.mark.parametrize("method", ["fedavg", "fedkf", "fedrad", "scaffold"])
def test_a_run_with_secure_sums_ends_where_the_plain_one_does(method: str, tmp_path: Any) -> None:
    """Both with the gather that secure sums ask for. Weights differ by the rounding of 2³²/3 levels over ±32 and by
    that of single precision, which training carries on: 1e-4 after three rounds.
    """
    plan = secure(method)
    plain = experiment({**plan.plain(), "wrappers": []})
    ends = []
    for name, which in (("secure", plan), ("plain", plain)):
        start(which, out=tmp_path, name=name)
        checkpoint, _ = RunDir.open(tmp_path / name).latest()
        assert checkpoint is not None
        ends.append(plan.method.models(stage(plan, Storage()).env, checkpoint.server))
    assert ends[0].keys() == ends[1].keys()
    for model, weights in ends[0].items():
        assert all(torch.allclose(w, ends[1][model][n], atol=1e-4) for n, w in weights.items()), model


def test_a_round_tells_how_far_its_mean_can_be_from_the_exact_one() -> None:
    """Three clients that count alike: half a step of 64 · 3/2³² each, over three: 2.2e-8."""
    plan = secure("fedrad")
    facts = start(plan, out=None).rows[0]["facts"]
    assert facts["sum_error"] == pytest.approx(32 * 3 / 2**32, rel=1e-6)


def test_clients_lost_in_any_phase_leave_the_sum_right_or_the_round_given_up() -> None:
    """A third of three may be lost. Round by round, either the rest is summed or all are named as given up."""
    plan = small_experiment(
        small_method("fedavg"), rounds=8, wrappers=[{"name": "secure-sums", "lost": [0.1, 0.1, 0.1, 0.1]}]
    )
    rows = start(plan, out=None).rows
    why = [set(row["missing"].values()) for row in rows]
    given_up = [any("the round is given up" in w for w in words) for words in why]
    partial = [bool(words) and not up for words, up in zip(why, given_up, strict=True)]
    assert any(given_up)
    assert any(partial)
    assert all(len(row["missing"]) == 3 for row, up in zip(rows, given_up, strict=True) if up)


def test_private_clients_under_secure_sums_share_the_noise() -> None:
    plan = small_experiment(small_method("fedavg"), wrappers=wrapped("clients,epsilon=4,clip=1", secure_sums=True))
    noise, sums = plan.wrappers
    assert noise.shared == pytest.approx(2 / 3)
    assert sums.by_samples is False
    told = ledger(plan.method, plan.wrappers)
    assert "covered: (ε ≤ 4" in told["weights"]
    assert "masked" in told["weights"]
    assert told["version"] == "a counter"
    assert start(plan, out=None).rows[-1]["facts"]["epsilon_clients"] <= 4


def test_the_ledger_tells_the_change_of_the_slot_as_well() -> None:
    assert secure("fedkf").method.uploads() is Changed
    assert isinstance(secure("scaffold").method.gather, Everyone), "its uploads carry no change of the weights"


def test_a_model_with_counters_is_refused() -> None:
    plan = small_experiment(small_method("fedavg"), model="resnet11", wrappers=[{"name": "secure-sums"}])
    with pytest.raises(UsageError, match="num_batches_tracked is a counter"):
        stage(plan, Storage())
