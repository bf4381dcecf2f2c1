"""The loop makes a download once where it is the same for all."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from smallest import small_experiment, small_method

from fedstill.core.loop import downloads, rounds
from fedstill.core.method import Env
from fedstill.core.shelf import Storage
from fedstill.experiment.run import active, transport
from fedstill.experiment.stage import stage
from fedstill.methods import FedAvg
from fedstill.parts.averaging import Broadcast
from fedstill.parts.gather import Remember
from fedstill.transports.shared import Slot


@dataclass(frozen=True)
class Own(FedAvg):
    """Everybody gets a record of their own: it does not say that the download is the same for all."""

    def download(self, env: Env, server: Any) -> Any:
        assert env.client is not None
        return Broadcast({**server.weights})


def made(method: Any, clients: Sequence[int]) -> dict[int, Any]:
    env = stage(small_experiment(method), Storage()).env.at(0)
    return downloads(method, env, method.init_server(env), clients)


def test_all_clients_get_one_record_where_the_method_says_so() -> None:
    downs = made(FedAvg(), [1, 4, 5])
    assert list(downs) == [1, 4, 5]
    assert downs[1] is downs[4] is downs[5]
    assert made(FedAvg(), []) == {}


def test_a_method_that_overrides_the_download_says_it_again() -> None:
    assert FedAvg.one_download
    assert not Own.one_download
    downs = made(Own(), [1, 4])
    assert downs[1] is not downs[4]


def test_fedkf_makes_its_teacher_once_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three clients are active: ŵ was made three times."""
    asked, models = [], Remember.models
    monkeypatch.setattr(Remember, "models", lambda self, env, state: asked.append(1) or models(self, env, state))
    made(small_method("fedkf"), [0, 1, 2])
    assert len(asked) == 1


@pytest.mark.parametrize(("method", "times"), [(FedAvg(epochs=1), 2), (Own(epochs=1), 3)])
def test_worker_processes_are_given_a_shared_download_once_each(
    method: Any, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three active clients on two workers: one download for all is written twice, one for each client three times."""
    plan = small_experiment(method, workers="2")
    ready, written, put = stage(plan, Storage()), [], Slot.put
    with transport(plan, ready, ready.env.shelf("clients")) as link:  # the workers are forked here, unpatched
        monkeypatch.setattr(Slot, "put", lambda slot, value: written.append(value) or put(slot, value))
        done = next(rounds(plan.method, ready.env, link, lambda t: active(plan, t), 1))
    assert len(done.replies) == 3
    assert len([down for down, _ in written if down is not None]) == times
