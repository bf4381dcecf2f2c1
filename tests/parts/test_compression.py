"""Compression around a client's turn: bytes, errors by hand, and that nothing is lost for good."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from smallest import small_experiment, small_method
from torch import tensor

from fedstill.core.errors import UsageError
from fedstill.core.method import Reply
from fedstill.core.shelf import Storage
from fedstill.core.turn import Party, ledger, turn
from fedstill.experiment.run import start
from fedstill.experiment.shorthand import wrapped
from fedstill.experiment.stage import stage
from fedstill.parts.averaging import Broadcast
from fedstill.parts.compression import Compressed, Quantise, TopK
from fedstill.parts.gather import Update
from fedstill.parts.sums import vector


def test_two_bits_are_four_levels_rounded_at_random_without_bias() -> None:
    """Levels of a tensor whose largest number is 3: −3, −1, 1, 3. So .5 becomes 1 in three of four cases, else −1;
    over 20,000 draws the mean is .5 ± 4 · .87/√20,000 = .025. Four codes share a byte.
    """
    env = stage(small_experiment("fedavg"), Storage()).env
    values = torch.full((20_001,), 0.5, dtype=torch.float64)
    values[-1] = 3.0
    wrapper = Quantise(width=2)
    codes, key = wrapper.written(env, values, [20_001])
    read = wrapper.read(codes, key, [20_001])
    assert codes.dtype == torch.uint8
    assert len(codes) == 5001
    assert set(read[:-1].round(decimals=6).tolist()) == {-1.0, 1.0}
    assert float(read[-1]) == pytest.approx(3.0)
    assert float(read[:-1].mean()) == pytest.approx(0.5, abs=0.025)


def test_top_k_sends_the_largest_with_their_places() -> None:
    wrapper = TopK(share=0.5)
    codes, key = wrapper.written(None, tensor([0.1, -3.0, 2.0, 0.0], dtype=torch.float64), [1, 3])  # type: ignore[arg-type]
    assert codes.tolist() == [-3.0, 2.0]
    assert key.tolist() == [1, 2]
    assert wrapper.read(codes, key, [1, 3]).tolist() == [0.0, -3.0, 2.0, 0.0]


def test_what_was_left_out_is_sent_later() -> None:
    """A client whose model moves by (4, 3, 2, 1) in every turn and may send one number: 4, then 3 + 3 = 6, then
    4 + 4 = 8 … After four turns what was sent and what is left are together 4 · (4, 3, 2, 1).
    """
    step, down = tensor([4.0, 3.0, 2.0, 1.0]), Broadcast({"w": torch.zeros(4)})
    whole = TopK(share=0.25).around(None, lambda env, state, down, data: (None, Update({"w": step})))  # type: ignore[arg-type]
    state, sent = None, []
    for _ in range(4):
        state, upload = whole(None, state, down, None)  # type: ignore[arg-type]
        sent.append((int(upload.key[0]), float(upload.codes[0])))
    assert sent[:3] == [(0, 4.0), (1, 6.0), (0, 8.0)]
    total = torch.zeros(4)
    for place, value in sent:
        total[place] += value
    assert torch.allclose(total + state.own.left, 4 * step)


@pytest.mark.parametrize(
    ("words", "bits"), [("quantise,width=8", 8), ("quantise,width=4", 4), ("top-k,share=0.1", 6.4)]
)
@pytest.mark.parametrize("method", ["fedkf", "scaffold"])
def test_a_compressed_run_learns_and_sends_as_few_bits_as_it_says(method: str, words: str, bits: float) -> None:
    plan = small_experiment(small_method(method), rounds=3, wrappers=wrapped(compress=words))
    plain = small_experiment(small_method(method), rounds=3)
    result, whole = start(plan, out=None), start(plain, out=None)
    numbers = whole.bytes()["up"] / 4
    assert result.bytes()["up"] * 8 / numbers == pytest.approx(bits, rel=0.02)
    assert result.bytes_by_field()["up"].keys() == {"codes", "key", "version"}
    assert all(not row["missing"] for row in result.rows)
    assert ledger(plan.method, plan.wrappers)["codes"].endswith(f"{bits:.3g} bits a weight")


def test_eight_bits_change_a_round_by_less_than_a_step_of_the_scale() -> None:
    plan = small_experiment(small_method("fedavg"), wrappers=wrapped(compress="quantise"))
    ready = stage(plan, Storage())
    env, method = ready.env.at(0, 1), plan.method
    down = method.download(env, method.init_server(ready.env))
    _, exact = turn(method, env, Party(ready.party(1).data), None, down)
    _, sent = turn(method, env, ready.party(1), None, down)
    reply = Reply(1, 9, sent, down=down, form=method.template(env))
    (opened,) = plan.wrappers[0].received(ready.env, [reply])
    step = 2 * sent.key.max() / 255
    assert float((vector(opened.upload) - vector(exact)).abs().max()) <= float(step) * 1.001


def message(**changed: Any) -> Reply[Any]:
    form = Update({"w": torch.zeros(4)})
    good = Compressed(torch.zeros(2), torch.zeros(2, dtype=torch.int32), 0)
    return Reply(0, 1, replace(good, **changed), down=Broadcast({"w": torch.zeros(4)}), form=form)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"codes": torch.zeros(3)}, "codes has shape"),
        ({"key": tensor([0, 9], dtype=torch.int32)}, "places that are not there"),
        ({"codes": tensor([float("nan"), 0.0])}, "not finite"),
    ],
)
def test_a_message_that_cannot_be_read_is_refused(changed: dict[str, Any], why: str) -> None:
    wrapper = TopK(share=0.5)
    assert wrapper.received(None, [message()])[0].error is None  # type: ignore[arg-type]
    error = wrapper.received(None, [message(**changed)])[0].error  # type: ignore[arg-type]
    assert error is not None
    assert why in error


def test_methods_that_send_more_than_weights_are_refused_by_what_they_send() -> None:
    with pytest.raises(UsageError, match="compresses weights; clients also send label counts"):
        small_experiment(small_method("fedgen"), wrappers=wrapped(compress="top-k"))
    with pytest.raises(UsageError, match="compressed difference"):
        small_experiment(small_method("fedavg"), wrappers=wrapped(compress="top-k", secure_sums=True))
    with pytest.raises(UsageError, match=r"--compress 'share=1': must begin with a name"):
        wrapped(compress="share=1")


def test_a_difference_from_another_network_is_refused() -> None:
    """DENSE sends its student down, and clients with other networks start from their own models."""
    plan = small_experiment(small_method("dense"), models="mlp,resnet8-slim", wrappers=wrapped(compress="quantise"))
    with pytest.raises(UsageError, match=r"^models: .* of another network .* and quantise takes"):
        start(plan, out=None)
