"""FedNova: the step by hand, equal steps, and how far steps with momentum go."""

import pytest
import torch
from smallest import small_experiment

from fedstill.core.errors import UsageError
from fedstill.core.method import Reply
from fedstill.core.shelf import Storage
from fedstill.experiment.stage import stage
from fedstill.methods import FedNova
from fedstill.methods.fednova import Walked, normalised_shares, path_length
from fedstill.parts.averaging import Global
from fedstill.parts.gather import Everyone, average, stepped


def test_the_step_by_hand():
    """p = ¼, ¾; 4 steps and 1: τ_eff = ¼·4 + ¾·1 = 7/4. From w = 1 to 3 and 4: 1 + 7/4 (¼·2/4 + ¾·3) = 1 + 7/4 · 19/8.
    The buffer, which is not trained, becomes its mean by samples, ¼·2 + ¾·6 = 5.
    """
    shares = normalised_shares([1, 3], [4.0, 1.0])
    assert shares == pytest.approx([7 / 64, 21 / 16])
    start = {"w": torch.tensor([1.0]), "running": torch.tensor([9.0])}
    ends = [{"w": torch.tensor([w]), "running": torch.tensor([b])} for w, b in ((3.0, 2.0), (4.0, 6.0))]
    made = stepped(start, ends, shares, ["w"], [1, 3])
    assert made["w"].item() == pytest.approx(1 + 7 / 4 * 19 / 8)
    assert made["running"].item() == 5


@pytest.mark.parametrize(("local_steps", "same"), [(3, True), (None, False)])
def test_with_equal_steps_it_is_fedavg(local_steps: int | None, same: bool):
    """Where all take three steps, every share is n_k/Σn; where all take an epoch of their own data, it is not."""
    method = FedNova(lr=0.1, epochs=1, local_steps=local_steps, batch=16, gather=Everyone())
    ready = stage(small_experiment(method), Storage())
    env = ready.env.at(0)
    server = method.init_server(env)
    replies = []
    for k in range(3):
        here = ready.env.at(0, k)
        _, upload = method.client(here, None, method.download(here, server), ready.party(k).data)
        replies.append(Reply(k, env.sizes[k], upload))
    made, expected = method.server(env, server, replies).weights, average(replies)
    assert (len({r.upload.steps for r in replies}) == 1) == same
    assert all(torch.allclose(made[n], expected[n], atol=1e-6) for n in expected) == same


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_the_length_of_a_path_is_how_far_a_constant_gradient_goes(momentum: float):
    place = torch.zeros(1, requires_grad=True)
    walker = torch.optim.SGD([place], lr=0.5, momentum=momentum)
    for _ in range(7):
        place.grad = torch.ones(1)
        walker.step()
    assert -place.item() / 0.5 == pytest.approx(path_length(7, momentum), rel=1e-5)


def test_a_client_that_took_no_step_changes_nothing_but_the_pace():
    """Of 1 and 3 samples, steps 0 and 2: τ_eff = 3/2, so w goes ¾ · (3/2)/2 of the way to the second client."""
    assert normalised_shares([1, 3], [0.0, 2.0]) == pytest.approx([0, 9 / 16])
    method = FedNova(gather=Everyone())
    env = stage(small_experiment(method), Storage()).env
    still = Reply(0, 5, Walked(env.initial(), 0))
    made = method.server(env, Global(env.initial(), None), [still])
    assert all(torch.equal(made.weights[n], t) for n, t in env.initial().items())


def test_wrong_things_are_told():
    with pytest.raises(UsageError, match=r"optimizer = adam: fednova knows"):
        FedNova(optimizer="adam")
    env = stage(small_experiment(FedNova()), Storage()).env
    assert FedNova().objection(env, Walked(env.form(), -1)) == "steps = -1: must be ≥ 0"
    counts = env.sizes[1]
    one = env.at(0, 1)
    assert FedNova(local_steps=3).objection(one, Walked(env.form(), 60)) is None
    told = FedNova(local_steps=3).objection(one, Walked(env.form(), 10**9))
    assert told == f"steps = 1000000000: its {counts} samples have 3"
    assert FedNova.leaves_client()["steps"] == "number of local steps"
