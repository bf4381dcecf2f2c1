"""FedProx: its steps by hand, and its rate over the rounds."""

from typing import Any

import pytest
import torch
from smallest import small_experiment
from torch.nn.functional import cross_entropy

from fedstill.core.shelf import Storage
from fedstill.experiment.stage import stage
from fedstill.methods import FedProx
from fedstill.parts.averaging import Broadcast


@pytest.mark.parametrize("settings", [{"mu": 0.8}, {"mu": 0.8, "lr_decay": 0.5}], ids=["steady", "decaying"])
def test_steps_are_down_the_gradient_of_the_loss(settings: dict[str, Any]) -> None:
    """Two steps on the whole data in round 3: CE + μ/2 ‖w − w_t‖², which pulls back in the second alone.

    Seen from round 0 the rate has been halved three times where it decays: .5 · .5³.
    """
    method = FedProx(local_steps=2, batch=10**6, lr=0.5, **settings)
    ready = stage(small_experiment(method), Storage())
    env, data = ready.env.at(3, 0), ready.party(0).data
    down = Broadcast(env.initial())
    _, upload = method.client(env, None, down, data)
    rate = 0.5 * settings.get("lr_decay", 1.0) ** 3
    module, anchor = env.module(down.weights), env.module(down.weights)
    for _ in range(2):
        module.zero_grad()
        away = sum(((w - o.detach()) ** 2).sum() for w, o in zip(module.parameters(), anchor.parameters(), strict=True))
        (cross_entropy(module(data.inputs()), data.y) + 0.4 * away).backward()
        with torch.no_grad():
            for parameter in module.parameters():
                assert parameter.grad is not None
                parameter -= rate * parameter.grad
    for name, parameter in module.named_parameters():
        assert torch.allclose(upload.weights[name], parameter.detach(), atol=1e-6)
