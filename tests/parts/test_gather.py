"""T1, the overall-clients aggregate, against sums made by hand."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from smallest import same_bits, small_experiment, small_method

from fedstill.core.method import Env, Reply
from fedstill.core.shelf import Storage
from fedstill.data.kinds import Image
from fedstill.experiment.run import start
from fedstill.experiment.rundir import RunDir
from fedstill.parts.gather import Changed, Remember, Update, average, mean


def env_of(sizes: tuple[int, ...], storage: Storage | None = None) -> Env:
    return Env(1, sizes, 2, Image((1, 8, 8)), lambda k, seed: torch.nn.Linear(1, 1), storage=storage or Storage())


def w(value: float) -> dict[str, torch.Tensor]:
    return {"w": torch.tensor([value])}


def overall(gather: Remember, env: Env, state: object) -> float:
    return float(gather.models(env, state)["overall"]["w"])  # type: ignore[arg-type]


def test_overall_by_hand() -> None:
    """Three clients of 1, 2, 3 samples; all slots start at 6.

    Client 2 sends 0: (1·6 + 2·6 + 3·0)/6 = 3. Then clients 0 and 2 send 12 and 2: (12 + 12 + 6)/6 = 5.
    """
    env, gather = env_of((1, 2, 3)), Remember()
    state = gather.init(env, w(6.0))
    assert overall(gather, env, state) == 6.0
    state, kept = gather.gather(env.at(0), state, [Reply(2, 3, Update(w(0.0)))])
    assert overall(gather, env, state) == 3.0
    state, kept = gather.gather(env.at(1), state, [Reply(0, 1, Update(w(12.0))), Reply(2, 3, Update(w(2.0)))])
    assert overall(gather, env, state) == 5.0
    assert [r.client for r in kept] == [0, 2]


def test_only_clients_seen_count_for_the_authors() -> None:
    """Clients of 1 and 3 samples send 4 and 8: 4 alone after the first, (4 + 24)/4 = 7 after the second."""
    env, gather = env_of((1, 3, 100)), Remember(start="seen")
    state = gather.init(env, w(6.0))
    state, _ = gather.gather(env.at(0), state, [Reply(0, 1, Update(w(4.0)))])
    assert overall(gather, env, state) == 4.0
    state, _ = gather.gather(env.at(1), state, [Reply(1, 3, Update(w(8.0)))])
    assert overall(gather, env, state) == 7.0


def test_the_running_sum_is_checked_against_the_full_one(tmp_path: Path) -> None:
    env, gather = env_of(tuple(range(1, 21)), Storage(tmp_path, limit=40)), Remember()
    state = gather.init(env, w(0.1))
    stream = torch.Generator().manual_seed(0)
    for t in range(150):
        value = torch.randn(1, generator=stream)
        state, _ = gather.gather(env.at(t), state, [Reply(t % 20, t % 20 + 1, Update({"w": value}))])
    assert torch.allclose(state.total["w"], gather.recompute(env, state)["w"], rtol=1e-12)
    assert 0 <= state.drift < 1e-9
    assert state.replaced < 150, "it was made anew in between"
    assert len(list((tmp_path / "slots").glob("*"))) > 0, "slots moved to files"


def test_slots_on_the_clients_give_the_same_aggregate_and_refuse_a_lost_version(runs: Path) -> None:
    plan = small_experiment(small_method("fedavg"), rounds=3)
    start(plan, out=runs, name="server")
    start(replace(plan, method=small_method("fedavg", gather=Remember(slots="client"))), out=runs, name="client")
    a, b = (RunDir.open(runs / n).latest()[0] for n in ("server", "client"))
    assert a is not None
    assert b is not None
    assert same_bits(a.server.weights, b.server.weights)
    for name, tensor in a.server.memory.total.items():
        assert torch.allclose(tensor, b.server.memory.total[name], rtol=1e-6, atol=1e-4), name
    up = [RunDir.open(runs / n).rows()[0]["bytes"]["up"] for n in ("server", "client")]
    assert up[1]["change"] == 2 * up[0]["weights"], "the change travels in float64"
    env, gather = env_of((1, 1)), Remember(slots="client")
    state = gather.init(env, w(0.0))
    state, kept = gather.gather(env, state, [Reply(0, 1, Changed(w(1.0), w(1.0), 5))])
    assert kept == []
    assert overall(gather, env, state) == 0.0


def test_with_everyone_active_overall_is_the_active_aggregate(runs: Path) -> None:
    result = start(small_experiment(small_method("fedavg"), active=1.0), out=runs)
    last = result.rows[-1]["models"]
    assert last["overall"]["accuracy_per_client"] == last["active"]["accuracy_per_client"]
    assert result.run_dir is not None
    state, _ = RunDir.open(result.run_dir).latest()
    assert state is not None
    total = {n: t / state.server.memory.samples for n, t in state.server.memory.total.items()}
    assert all(torch.allclose(total[n].float(), v, atol=1e-7) for n, v in state.server.weights.items())


def test_mean_by_hand_and_whole_number_buffers() -> None:
    """(1·2 + 3·6)/4 = 5; counters 3 and 4 weighted so are 3.75, rounded to 4."""
    a = {"w": torch.tensor([2.0]), "n": torch.tensor(3)}
    b = {"w": torch.tensor([6.0]), "n": torch.tensor(4)}
    both = average([Reply(0, 1, Update(a)), Reply(1, 3, Update(b))])
    assert float(both["w"]) == 5.0
    assert int(both["n"]) == 4
    assert both["n"].dtype == torch.int64
    assert float(mean([a, b])["w"]) == pytest.approx(4.0)
