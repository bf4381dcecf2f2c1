"""Attacks: what they change, what they leave alone, and on whom they cannot be made."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from smallest import same_bits, small_experiment, small_method
from torch import tensor

from fedstill.core.errors import UsageError
from fedstill.core.loop import admit
from fedstill.core.method import Reply, methods
from fedstill.core.record import Carries, carries, record
from fedstill.core.shelf import Storage
from fedstill.core.turn import Party, misfit, turn
from fedstill.core.value import build_named, plain
from fedstill.experiment.stage import stage
from fedstill.parts.attacks import (
    Attack,
    Gaussian,
    LabelFlip,
    LogitFlip,
    NoisyData,
    Scaled,
    SecondMax,
    SignFlip,
    attacks,
)
from fedstill.parts.averaging import Broadcast
from fedstill.parts.gather import Changed, Update


def stream() -> torch.Generator:
    return torch.Generator().manual_seed(7)


@pytest.fixture(scope="module")
def ready() -> Any:
    return stage(small_experiment(small_method("fedtkd")), Storage())


@pytest.fixture(scope="module")
def env(ready: Any) -> Any:
    return ready.env.at(1, 2)


def test_every_attack_is_a_value_with_a_name() -> None:
    assert set(attacks) >= {"logit-flip", "noisy-data", "second-max", "label-flip", "sign-flip", "gaussian", "scaled"}
    for name in attacks:
        made = attacks[name]()
        assert build_named(Attack, plain(made)) == made


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_logit_flip_swaps_the_largest_in_a_share_of_the_samples(share: float) -> None:
    """Of 40 samples, 40·share have another largest place; every row still holds the same values."""
    logits = torch.randn(40, 6, generator=stream())
    forged = LogitFlip(share).forged(stream(), logits)
    moved = forged.argmax(-1) != logits.argmax(-1)
    assert int(moved.sum()) == round(40 * share)
    assert torch.equal(forged.sort(-1).values, logits.sort(-1).values)
    assert torch.equal(forged[~moved], logits[~moved])
    for before, after in zip(logits[moved], forged[moved], strict=True):
        assert int((before != after).sum()) == 2


def test_logit_flip_reaches_every_other_place() -> None:
    forged = LogitFlip(1.0).forged(stream(), tensor([[9.0, 1.0, 2.0, 3.0]]).repeat(200, 1))
    assert set(forged.argmax(-1).tolist()) == {1, 2, 3}


def test_second_max_raises_half_of_the_others() -> None:
    """Five classes: ceil(4/2) = 2 of the four others become 3 − 1e-5; the largest stays the largest."""
    logits = tensor([[0.0, 3.0, -1.0, 1.0, 2.0]]).repeat(50, 1)
    forged = SecondMax().forged(stream(), logits)
    raised = forged != logits
    assert raised.sum(-1).tolist() == [2] * 50
    assert not raised[:, 1].any()
    torch.testing.assert_close(forged[raised], torch.full((100,), 3.0 - 1e-5))
    assert (forged[raised] < 3.0).all()
    assert raised[:, [0, 2, 3, 4]].any(0).all()


@pytest.mark.parametrize("classes", [1, 2, 10, 11])
def test_second_max_takes_half_rounded_up(classes: int) -> None:
    logits = torch.arange(classes).float().repeat(3, 1)
    changed = (SecondMax().forged(stream(), logits) != logits).sum(-1)
    assert changed.tolist() == [math.ceil((classes - 1) / 2)] * 3


def test_second_max_of_a_large_logit_is_the_next_smaller_float() -> None:
    """1e6 − 1e-5 is 1e6 in float32, whose next smaller number is 1e6 − 1/16."""
    forged = SecondMax().forged(stream(), tensor([[1e6, 0.0]]))
    assert forged.tolist() == [[1e6, 1e6 - 0.0625]]


def test_noisy_data_spoils_its_share_of_the_images_and_no_label(ready: Any, env: Any) -> None:
    data = ready.party(2).data
    before = data.x.clone()
    attack = NoisyData(share=(0.25, 0.75)).on(3)
    assert attack.share == (0.75,)
    noisy = attack.data(env, data)
    changed = (noisy.x != data.x).flatten(1).any(1)
    assert int(changed.sum()) == round(0.75 * len(data))
    assert torch.equal(noisy.y, data.y)
    assert torch.equal(data.x, before), "the client's own data are not touched"
    assert noisy.x.dtype == data.x.dtype
    assert torch.equal(attack.data(env.at(5, 2), data).x, noisy.x), "the same in every round"
    assert not torch.equal(attack.data(env.at(5, 1), data).x, noisy.x), "another client's differ"


def test_noise_stays_within_black_and_white_for_float_images(ready: Any, env: Any) -> None:
    data = ready.party(2).data
    real = replace(data, x=data.x.float() / 255)
    noisy = NoisyData(share=(1.0,), std=5.0).data(env, real)
    assert real.x.min() <= noisy.x.min() < noisy.x.max() <= real.x.max()


@pytest.mark.parametrize("share", [(), (1.5,), (-0.1, 0.5)])
def test_noisy_data_refuses_impossible_shares(share: tuple[float, ...]) -> None:
    with pytest.raises(UsageError, match="share = "):
        NoisyData(share=share)


def test_label_flip_counts_classes_from_the_other_end(ready: Any, env: Any) -> None:
    data = ready.party(2).data
    flipped = LabelFlip().data(env, data)
    assert torch.equal(flipped.y, 9 - data.y)
    assert torch.equal(flipped.x, data.x)


def test_forged_weights_by_hand(env: Any) -> None:
    """w_t = 1, w_k = 3, a step of 2: sign-flip by 10 sends 1 − 20 = −19, scaled by 10 sends 21; counters stay."""
    received = {"w": tensor([1.0]), "bn.running_var": tensor([1.0]), "count": tensor(4)}
    trained = {"w": tensor([3.0]), "bn.running_var": tensor([3.0]), "count": tensor(9)}
    for attack, expected in ((SignFlip(10.0), -19.0), (Scaled(10.0), 21.0)):
        sent = attack.upload(env, Update(trained), Broadcast(received)).weights
        assert sent["w"].tolist() == [expected]
        assert sent["bn.running_var"].tolist() == [3.0]
        assert int(sent["count"]) == 9
    sent = Gaussian(std=0.5).upload(env, Update({"w": torch.zeros(4000)}), Broadcast({"w": torch.full((4000,), 2.0)}))
    assert sent.weights["w"].mean().item() == pytest.approx(2.0, abs=0.05)
    assert sent.weights["w"].std().item() == pytest.approx(0.5, abs=0.05)


def test_the_change_a_client_tells_moves_with_its_weights(env: Any) -> None:
    """Sent −19 instead of 3: the change since the last upload, 2.5, becomes 2.5 − 22."""
    honest = Changed({"w": tensor([3.0])}, {"w": tensor([2.5], dtype=torch.float64)}, 1)
    sent = SignFlip(10.0).upload(env, honest, Broadcast({"w": tensor([1.0])}))
    assert sent.change["w"].tolist() == [-19.5]
    assert sent.version == 1


def test_an_attack_does_not_shift_the_client_s_own_draws(ready: Any) -> None:
    """The attacked turn trains on the same batches: the client keeps the same model, and unflipped rows are equal."""
    method, env = small_method("fedtkd"), ready.env.at(0, 1)
    down = method.download(env, method.init_server(env.at(0)))
    kept, honest = turn(method, env, Party(ready.party(1).data), None, down)
    same, forged = turn(method, env, Party(ready.party(1).data, (LogitFlip(),)), None, down)
    assert same_bits(kept, same)
    moved = (honest.logits != forged.logits).any(-1)
    assert int(moved.sum()) == round(len(honest.logits) / 2)


@pytest.mark.parametrize(
    ("method", "attack"),
    [
        ("fedavg", "logit-flip"),
        ("fedavg", "second-max"),
        ("fedtkd", "sign-flip"),
        ("fedmd", "gaussian"),
        ("fedhe", "scaled"),
    ],
)
def test_an_attack_that_does_not_fit_is_refused_before_anything_runs(method: str, attack: str) -> None:
    with pytest.raises(UsageError, match=rf"^attack = {attack}: works on "):
        small_experiment(small_method(method), attack=attack, malicious=0.5)


@pytest.mark.parametrize(
    ("name", "settings", "refused"),
    [
        ("sign-flip", {}, True),
        ("alie", {}, True),
        ("backdoor", {"boost": 2.0}, True),
        ("backdoor", {}, False),
    ],
)
def test_a_step_from_another_network_is_refused_and_other_attacks_are_not(
    name: str, settings: dict[str, Any], refused: bool
) -> None:
    """DENSE sends its student down, and clients with other networks start from their own models."""
    attack: Any = build_named(Attack, {"name": name, **settings})
    plan = small_experiment(small_method("dense"), models="mlp,resnet8-slim", attack=attack, malicious=(1,))
    if refused:
        with pytest.raises(UsageError, match=f"of another network .* and {name} takes"):
            stage(plan, Storage())
    else:
        assert stage(plan, Storage()).party(1).wrappers == (attack,)


@pytest.mark.parametrize(
    ("method", "attack"),
    [("fedavg", "sign-flip"), ("fedavg", "noisy-data"), ("fedhe", "logit-flip"), ("fedtkd", "second-max")],
)
def test_an_attack_that_fits_is_given_to_the_malicious_alone(method: str, attack: str) -> None:
    plan = small_experiment(small_method(method), attack=attack, malicious=0.5)
    parties = stage(plan, Storage()).party
    assert [len(parties(k).wrappers) for k in range(6)] == [0, 1] * 3


@record
class Renamed:
    """An upload whose fields have names of their own."""

    opinion: torch.Tensor = carries(Carries.LOGITS)
    model: dict[str, torch.Tensor] = carries(Carries.WEIGHTS)
    logits: int = carries("a number of a method's own kind")


@record
class Sent:
    start: dict[str, torch.Tensor] = carries(Carries.WEIGHTS)


def test_attacks_find_their_field_by_what_it_carries(env: Any) -> None:
    """w_t = 1, w_k = 3: the field that carries weights becomes −19, whatever it is called; `logits` is no logits."""
    honest = Renamed(tensor([[5.0, 1.0]]), {"w": tensor([3.0])}, 7)
    flipped = SignFlip(10.0).upload(env, honest, Sent({"w": tensor([1.0])}))
    assert flipped.model["w"].tolist() == [-19.0]
    swapped = LogitFlip(1.0).upload(env, honest, None)
    assert swapped.opinion.tolist() == [[1.0, 5.0]]
    assert (flipped.logits, swapped.logits) == (7, 7)


@pytest.mark.parametrize(
    ("attack", "step"), [(SignFlip(2.0), -2.0), (Scaled(3.0), 3.0), (Gaussian(1.0), None)], ids=lambda v: str(v)
)
def test_an_attacker_of_scaffold_is_admitted_and_moves_the_model_as_it_wants(attack: Any, step: float | None) -> None:
    """One attacker, one honest client, η_g = 1: w⁺ = w + ½ (step (y₁ − w)) + ½ (y₀ − w).

    Its control variate is what it keeps, so c moves as without the attack.
    """
    method = small_method("scaffold", gather="everyone")
    ready = stage(small_experiment(method, clients=2, active=1.0, samples=100), Storage())
    env = ready.env.at(0)
    server = method.init_server(env)
    down = method.download(env, server)
    honest = [turn(method, env.at(0, k), Party(ready.party(k).data), None, down)[1] for k in (0, 1)]
    kept, forged = turn(method, env.at(0, 1), Party(ready.party(1).data, (attack,)), None, down)
    replies = [Reply(0, 50, honest[0]), Reply(1, 50, forged)]
    good, missing = admit(method, env, replies)
    assert missing == {}
    moved = method.server(env, server, good)
    plain = method.server(env, server, [Reply(0, 50, honest[0]), Reply(1, 50, honest[1])])
    for name, w in server.weights.items():
        wanted = w + (honest[0].weights[name] - w) / 2
        wanted = wanted + ((forged.weights[name] - w) / 2 if step is None else step * (honest[1].weights[name] - w) / 2)
        torch.testing.assert_close(moved.weights[name], wanted, rtol=1e-4, atol=1e-5)
        assert not torch.equal(moved.weights[name], plain.weights[name])
    assert same_bits(moved.control, plain.control)
    assert same_bits(kept.control, forged.change), "c_i starts at 0: what it keeps is what it told"


@pytest.mark.parametrize("name", sorted(methods))
def test_an_attacked_reply_is_of_the_form_that_the_method_admits(name: str) -> None:
    """Whatever else a method sends: an attack that fits it is never found out by the form of what it sends."""
    method = small_method(name)
    known = [attacks[title]() for title in ("label-flip", "sign-flip", "logit-flip")]
    fitting = [attack for attack in known if not misfit(method, (attack,))]
    assert fitting
    for attack in fitting:
        ready = stage(small_experiment(method, clients=2, active=1.0, samples=100), Storage())
        env = ready.env.at(0, 0)
        down = method.download(env, method.init_server(env.at(0)))
        _, forged = turn(method, env, Party(ready.party(0).data, (attack,)), None, down)
        assert admit(method, env.at(0), [Reply(0, 50, forged)])[1] == {}
