"""DaFKD: both forms of the upload agree, domains are weighed, a client that diverges reaches nobody."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from smallest import same_bits, small_experiment, small_method

from fedstill.core.errors import UsageError
from fedstill.core.loop import Round, rounds
from fedstill.core.method import Method, Reply
from fedstill.core.shelf import Storage
from fedstill.core.turn import Party
from fedstill.core.value import build_named, plain
from fedstill.data import load
from fedstill.experiment.run import active, start, transport
from fedstill.experiment.stage import Stage, stage
from fedstill.methods.dafkd.counsel import Contribution, VeiledContribution
from fedstill.parts.attacks import Attack


def small(**settings: Any) -> Any:
    return small_method("dafkd", **{"local_steps": 4, **settings})


def ready_for(method: Any, **settings: Any) -> tuple[Any, Stage]:
    plan = small_experiment(method, **settings)
    return plan, stage(plan, Storage())


def played(method: Any, count: int, **settings: Any) -> list[Round]:
    plan, ready = ready_for(method, rounds=count, **settings)
    with transport(plan, ready, ready.env.shelf("clients")) as link:
        return list(rounds(method, ready.env, link, lambda t: active(plan, t), count))


def turns(method: Any, ready: Stage, clients: tuple[int, ...] = (0, 1, 2)) -> list[Reply[Any]]:
    """The replies of a first round."""
    env = ready.env
    down = method.download(env, method.init_server(env))
    found = []
    for k in clients:
        here = env.at(0, k)
        found.append(
            Reply(k, env.sizes[k], method.client(here, method.init_client(here), down, ready.party(k).data)[1])
        )
    return found


def test_predictions_instead_of_the_discriminator_change_nothing_but_what_leaves() -> None:
    open_form, veiled = small(samples_from="previous"), small(upload="predictions")
    assert veiled.samples_from == "previous"
    _, ready = ready_for(open_form)
    env, server = ready.env.at(0), open_form.init_server(ready.env)
    images = open_form.samples(env, server.generator, 64)
    here, there = turns(open_form, ready), turns(veiled, ready)
    targets = [m.ensemble(env, [r.upload for r in rs], images) for m, rs in ((open_form, here), (veiled, there))]
    torch.testing.assert_close(targets[0][0], targets[1][0], atol=1e-6, rtol=0)
    torch.testing.assert_close(targets[0][1], targets[1][1], atol=1e-6, rtol=0)
    after = open_form.server(env, server, here), veiled.server(env, server, there)
    for name, tensor in after[0].weights.items():
        torch.testing.assert_close(after[1].weights[name], tensor, atol=1e-4, rtol=0)
    assert same_bits(after[0].average, after[1].average)


def test_the_ledger_shows_that_no_discriminator_left() -> None:
    last = played(small(upload="predictions"), 2)[-1]
    assert set(last.bytes["up"]) == {"weights", "generator", "predictions", "importance"}
    assert last.bytes["up"]["predictions"] == 3 * 64 * 10 * 4  # clients × samples × classes × float32
    assert last.bytes["up"]["importance"] == 3 * 64 * 4
    assert small(upload="predictions").uploads() is VeiledContribution
    assert small().uploads() is Contribution
    assert played(small(), 1)[0].bytes["up"]["discriminator"] == 3 * (64 + 1) * 4  # one layer on 64 features


def test_equal_discriminators_are_plain_ensemble_distillation() -> None:
    method, equal = small(), small(correlation=False)
    _, ready = ready_for(method)
    replies = turns(method, ready)
    same = replies[0].upload.discriminator
    zero = {name: torch.zeros_like(tensor) for name, tensor in same.items()}  # f = ½ everywhere
    alike = [replace(r, upload=replace(r.upload, discriminator=zero)) for r in replies]
    env, server = ready.env.at(0), method.init_server(ready.env)
    one, other = method.server(env, server, alike), equal.server(env, server, alike)
    for name, tensor in one.weights.items():
        torch.testing.assert_close(other.weights[name], tensor, atol=1e-5, rtol=0)
    torch.testing.assert_close(torch.stack(list(one.factors.values()))[:, one.made > 0].mean(), torch.tensor(1 / 3))


def test_with_one_client_the_teacher_is_that_client() -> None:
    method = small()
    _, ready = ready_for(method)
    (only,) = turns(method, ready, (4,))
    env = ready.env.at(0)
    images = method.samples(env, only.upload.generator, 64)
    targets, factors, made = method.ensemble(env, [only.upload], images)
    own = torch.softmax(env.module(only.upload.weights).eval()(images), -1)
    torch.testing.assert_close(targets, own.detach())
    assert torch.equal(factors, (made > 0).float().unsqueeze(0))


def test_the_averages_are_plain_means() -> None:
    """(4), (6): three clients of different sizes count the same."""
    method = small()
    _, ready = ready_for(method)
    replies = turns(method, ready)
    after = method.server(ready.env.at(0), method.init_server(ready.env), replies)
    for part, mean in (("weights", after.average), ("generator", after.generator)):
        name = next(n for n, t in mean.items() if t.is_floating_point())
        by_hand = sum(getattr(r.upload, part)[name] for r in replies) / 3
        torch.testing.assert_close(mean[name], by_hand)


@dataclass(frozen=True)
class Diverged(Attack):
    """A client whose training blew up in one part of what it sends."""

    part: str

    def upload(self, env: Any, upload: Any, *context: Any) -> Any:
        broken = {
            n: torch.full_like(t, torch.nan) if t.is_floating_point() else t
            for n, t in getattr(upload, self.part).items()
        }
        return replace(upload, **{self.part: broken})


@pytest.mark.parametrize("part", ["generator", "discriminator"])
def test_a_client_that_diverges_reaches_nobody(part: str) -> None:
    method = small()
    plan, ready = ready_for(method, active=1.0, rounds=2)
    honest = ready.party
    ready = replace(ready, party=lambda k: Party(honest(k).data, (Diverged(part),) if k == 3 else ()))
    with transport(plan, ready, ready.env.shelf("clients")) as link:
        done = list(rounds(method, ready.env, link, lambda t: active(plan, t), 2))
    for row in done:
        assert list(row.missing) == [3]
        assert row.missing[3].startswith(f"refused: /{part}/")
        assert [r.client for r in row.replies] == [0, 1, 2, 4, 5]
        states = (row.server.weights, row.server.generator, row.server.factors)
        assert all(torch.isfinite(t).all() for state in states for t in state.values())


def test_a_client_begins_anew_with_a_broken_discriminator() -> None:
    method = small()
    _, ready = ready_for(method)
    env = ready.env.at(0, 1)
    fresh = method.init_client(env)
    broken = replace(fresh, discriminator={n: t * torch.nan for n, t in fresh.discriminator.items()})
    down = method.download(env, method.init_server(env))
    results = [method.client(env, state, down, ready.party(1).data) for state in (fresh, broken)]
    assert same_bits(results[0][0], results[1][0])
    assert same_bits(results[0][1], results[1][1])


def test_the_discriminator_is_kept_between_rounds_and_moves() -> None:
    method = small()
    plan, ready = ready_for(method, active=1.0, rounds=1)
    with transport(plan, ready, ready.env.shelf("clients")) as link:
        next(rounds(method, ready.env, link, lambda t: active(plan, t), 1))
        states = link.states
    first = method.init_client(ready.env.at(0, 0)).discriminator["head.weight"]
    kept = [states[k].discriminator["head.weight"] for k in (0, 1)]
    assert not torch.equal(kept[0], first)
    assert not torch.equal(kept[0], kept[1])


def test_without_sharing_the_discriminator_brings_its_own_trunk() -> None:
    """mlp on 8 × 8: a trunk of 64·64 + 64, a head of 64 + 1."""
    sent = played(small(sharing=False), 1)[0].bytes["up"]["discriminator"]
    assert sent == 3 * 4 * (64 * 64 + 64 + 64 + 1)


def test_the_authors_profile() -> None:
    """No distillation in round 1, discriminators at rest after round 3, generators after round 5."""
    method = small_method("dafkd", profile="authors", distill_epochs=2)
    assert (method.local_steps, method.temperature, method.samples_from, method.stable) == (
        None,
        20.0,
        "previous",
        True,
    )
    assert method.channels == 4, "what the user says stands"
    assert build_named(Method, plain(method)) == method
    assert build_named(Method, plain(small(local_steps="none"))).local_steps is None
    done = played(method, 6, active=6, clients=6, samples=200)
    assert same_bits(done[0].server.weights, done[0].server.average)
    assert not same_bits(done[1].server.weights, done[1].server.average)
    for part, rests in (("discriminator", 3), ("generator", 5)):
        seen = [
            {n: t for n, t in getattr(d.replies[0].upload, part).items() if "head" in n or "linear" in n} for d in done
        ]
        assert not same_bits(seen[rests - 2], seen[rests - 1])
        assert part == "generator" or same_bits(seen[rests - 1], seen[rests])
    last, before = done[5], done[4]
    name = next(n for n in last.server.generator if n.endswith("linear.weight"))
    torch.testing.assert_close(last.server.generator[name], before.server.generator[name], atol=1e-6, rtol=0)


def test_an_importance_that_is_no_probability_is_refused() -> None:
    method = small(upload="predictions")
    _, ready = ready_for(method)
    (reply,) = turns(method, ready, (0,))
    assert method.objection(ready.env.at(0, 0), reply.upload) is None
    loud = replace(reply.upload, importance=reply.upload.importance + 1)
    assert method.objection(ready.env.at(0, 0), loud) == "importance: must be > 0 and ≤ 1"


def test_every_round_tells_the_weights_and_how_they_fit_the_label_shares(runs: Path) -> None:
    result = start(small_experiment(small()), out=runs, name="one")
    assert result.models == ["global", "average"]
    for row in result.rows:
        facts = row["facts"]
        assert sum(facts["made"]) == 64
        told = torch.tensor(list(facts["domain_weights"].values()))
        made = torch.tensor(facts["made"]) > 0
        torch.testing.assert_close(told[:, made].sum(0), torch.ones(int(made.sum())))
        assert -1 <= facts["domain_correlation"] <= 1


def test_discriminators_learn_whose_domain_a_sample_is_of() -> None:
    """Two clients, digits 0–4 and 5–9: each scores its own kind higher than the other's, on samples it never saw."""
    digits = load("digits").train
    low, high = (digits[(digits.y < 5)], digits[(digits.y >= 5)])
    method = small_method("dafkd", local_steps=150, lr=3e-3, generator_lr=1e-4)
    _, ready = ready_for(method)
    server = method.init_server(ready.env)
    scores = []
    for k, mine in enumerate((low, high)):
        env = ready.env.at(0, k)
        upload = method.client(env, method.init_client(env), method.download(env, server), mine[:400])[1]
        duel = method.duel(env, upload.weights, upload.discriminator)
        scores.append([float(duel.voice(part[400:].inputs(), 1.0)[1].mean()) for part in (low, high)])
    assert scores[0][0] > scores[0][1]
    assert scores[1][1] > scores[1][0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"upload": "all"}, "upload = 'all': must be one of discriminator, predictions"),
        ({"batch": 1}, "batch = 1: must be ≥ 2"),
        ({"generator": "light2"}, "unknown generator 'light2'; did you mean light"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        played(small(**settings), 1)


def test_a_generator_of_features_teaches_the_head_and_leaves_the_trunk() -> None:
    """Appendix A: no sample is made, so what is distilled passes heads alone; and what leaves draws no picture."""
    method = small(generator="features")
    _, ready = ready_for(method)
    env, replies = ready.env.at(0), turns(method, ready)
    assert method.samples(env, replies[0].upload.generator, 8).shape == (8, 64), "feature vectors, not images"
    after = method.server(env, method.init_server(ready.env), replies)
    own = set(dict(env.module().head.named_parameters(prefix="head")))
    changed = {name for name, tensor in after.weights.items() if not torch.equal(tensor, after.average[name])}
    assert changed == own
    assert after.gallery == {}


def test_with_features_too_the_discriminator_may_stay_at_home() -> None:
    open_form, veiled = (
        small(generator="features", samples_from="previous"),
        small(generator="features", upload="predictions"),
    )
    _, ready = ready_for(open_form)
    env, server = ready.env.at(0), open_form.init_server(ready.env)
    after = [m.server(env, server, turns(m, ready)) for m in (open_form, veiled)]
    for name, tensor in after[0].weights.items():
        torch.testing.assert_close(after[1].weights[name], tensor, atol=1e-4, rtol=0)


def test_a_generator_of_features_needs_the_shared_trunk() -> None:
    with pytest.raises(UsageError, match="sharing = false: generator = features needs"):
        small(generator="features", sharing=False)
    with pytest.raises(UsageError, match="profile = authors: generator = features needs"):
        small(generator="features", profile="authors")
    with pytest.raises(UsageError, match="features"):
        small_method("fedftg", generator="features")
