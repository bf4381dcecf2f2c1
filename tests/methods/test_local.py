"""Local: nobody's model depends on anybody else, and nothing but a count leaves a client."""

import pytest
import torch
from smallest import same_bits, small_experiment

from fedstill.core.errors import UsageError
from fedstill.core.shelf import Storage
from fedstill.experiment.config import experiment
from fedstill.experiment.run import start
from fedstill.experiment.rundir import RunDir
from fedstill.experiment.stage import stage
from fedstill.methods import FedAvg, Local
from fedstill.methods.local import Alone, Nothing, Steps
from fedstill.parts.averaging import Broadcast


def test_a_turn_is_fedavgs_from_the_clients_own_model() -> None:
    """Without momentum an optimiser has no past: FedAvg's turn from the same weights gives the same bits."""
    method, plain = Local(lr=0.1, epochs=2), FedAvg(lr=0.1, epochs=2)
    ready = stage(small_experiment(method), Storage())
    env, data = ready.env.at(0, 1), ready.party(1).data
    first = method.init_client(env)
    state, upload = method.client(env, first, Nothing(), data)
    assert same_bits(state.weights, plain.client(env, None, Broadcast(first.weights), data)[1].weights)
    assert float(upload.steps) == 2 * -(-len(data) // 64)


def test_momentum_goes_on_between_turns() -> None:
    """Two turns of one step with momentum are not two first steps: w − lr g₁ − lr (g₂ + .9 g₁)."""
    method = Local(lr=0.1, momentum=0.9, local_steps=1, batch=10**6)
    ready = stage(small_experiment(method), Storage())
    env, data = ready.env.at(0, 0), ready.party(0).data
    before = method.init_client(env)
    once, _ = method.client(env, before, Nothing(), data)
    twice, _ = method.client(env.at(1, 0), once, Nothing(), data)
    fresh, _ = method.client(env.at(1, 0), Alone(once.weights, {}), Nothing(), data)
    for name in twice.weights:
        pushed = fresh.weights[name] + 0.9 * (once.weights[name] - before.weights[name])
        torch.testing.assert_close(twice.weights[name], pushed, atol=1e-6, rtol=1e-4)


def test_other_clients_data_change_nothing(runs) -> None:
    """Client 0 sees its own samples only: with all the others attacked its model is the same, bit for bit."""
    plan = {"active": 1.0, "rounds": 2}
    start(small_experiment(Local(epochs=1), **plan), out=runs, name="honest")
    attacked = small_experiment(Local(epochs=1), attack="label-flip", malicious=(1, 2, 3, 4, 5), **plan)
    start(attacked, out=runs, name="attacked")
    honest, other = (RunDir.open(runs / name).latest()[0].clients for name in ("honest", "attacked"))
    assert same_bits(honest[0], other[0])
    assert not same_bits(honest[1], other[1])


def test_four_bytes_a_turn_leave_a_client_and_networks_may_differ(runs) -> None:
    plan = small_experiment(Local(lr=0.1, epochs=8), rounds=2, active=1.0, models="mlp,lenet5")
    result = start(plan, out=None)
    assert result.models == ["personal"]
    assert result.bytes() == {"down": 0, "up": 2 * 6 * 4}
    assert result.last("personal")["amp"] > 0.5
    assert Local.leaves_client() == {"steps": "number of local steps"}


@pytest.mark.parametrize("steps", [-1.0, float("-inf")])
def test_negative_steps_are_refused(steps: float) -> None:
    env = stage(small_experiment(Local()), Storage()).env
    assert "must be ≥ 0" in str(Local().objection(env, Steps(torch.tensor(steps))))


def test_an_attack_on_weights_is_refused() -> None:
    with pytest.raises(UsageError, match="attack = sign-flip: works on model weights"):
        experiment({"method": "local", "attack": "sign-flip", "malicious": "0.2"})
