"""FedTKD: its loss by hand, its rounds with different networks, under attack, and with malformed replies."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from smallest import small_experiment
from torch import nn, tensor

from fedstill.core.errors import RunError, UsageError
from fedstill.core.loop import rounds
from fedstill.core.shelf import Storage
from fedstill.core.turn import Party
from fedstill.experiment.run import active, start, transport
from fedstill.experiment.rundir import RunDir
from fedstill.experiment.stage import stage
from fedstill.methods import FedDistill, FedMD, FedTKD
from fedstill.parts.attacks import Attack
from fedstill.parts.gather import Everyone
from fedstill.parts.public_logits import PublicLogits, Wisdom
from fedstill.parts.trust import Identify


def test_the_loss_on_the_public_set_by_hand() -> None:
    """(23) Student ½ ½: both CE and KD are ln 2 whatever the teacher says. Student ¾ ¼ on label 0, teacher ½ ½ at T:

    CE = ln 4/3, KD = ½ ln 4/3 + ½ ln 4, w_0 = .2: .8 CE + .2 KD. The mean of both samples; place 1 comes first.
    """
    teacher = tensor([[0.0, 0.0], [9.0, 1.0]])
    down = Wisdom(teacher, torch.arange(2), tensor([0.2, 0.1]))
    student = tensor([[0.0, 0.0], [math.log(3.0), 0.0]])
    loss = FedTKD().public_loss(student, tensor([1, 0]), tensor([1, 0]), down)
    ce, kd = math.log(4 / 3), 0.5 * math.log(4 / 3) + 0.5 * math.log(4)
    assert loss.item() == pytest.approx((math.log(2) + 0.8 * ce + 0.2 * kd) / 2)


def test_the_teacher_is_softened_and_the_loss_is_not_scaled_up() -> None:
    """(20), (22) Teacher 3·(ln 3, 0) at T = 3 is ¾ ¼; student ½ ½ at temperature 1: KD = ln 2, not 9 ln 2."""
    down = Wisdom(tensor([[3 * math.log(3.0), 0.0]]), torch.arange(1), tensor([1.0, 1.0]))
    loss = FedTKD().public_loss(tensor([[0.0, 0.0]]), tensor([0]), tensor([0]), down)
    assert loss.item() == pytest.approx(math.log(2))
    sure = tensor([[math.log(3.0), 0.0]])
    taught = FedTKD().public_loss(sure, tensor([0]), tensor([0]), down)
    assert taught.item() == pytest.approx(0.75 * math.log(4 / 3) + 0.25 * math.log(4))


def test_the_student_has_a_temperature_of_its_own() -> None:
    """Teacher ¾ ¼; the student's 2·(ln 3, 0) at temperature 2 is ¾ ¼ too: KD is their entropy."""
    down = Wisdom(tensor([[3 * math.log(3.0), 0.0]]), torch.arange(1), tensor([1.0, 1.0]))
    sure = tensor([[2 * math.log(3.0), 0.0]])
    loss = FedTKD(student_T=2.0).public_loss(sure, tensor([0]), tensor([0]), down)
    assert loss.item() == pytest.approx(0.75 * math.log(4 / 3) + 0.25 * math.log(4))


def test_the_first_round_is_cross_entropy() -> None:
    loss = FedTKD().public_loss(tensor([[math.log(3.0), 0.0]]), tensor([0]), tensor([0]), Wisdom(None, None, None))
    assert loss.item() == pytest.approx(math.log(4 / 3))


def slim(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """A user's own network."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 24), nn.ReLU(), nn.Linear(24, classes))


def federation(method: Any, **settings: Any) -> Any:
    given = {
        "samples": 1000,
        "clients": 6,
        "active": 1.0,
        "rounds": 5,
        "alpha": 100.0,
        "public": 0.3,
        "local_test": 0.1,
    }
    return small_experiment(method, **{**given, **settings})


def test_networks_may_differ_and_only_logits_travel() -> None:
    plan = federation(FedTKD(), models=("mlp", f"{__name__}:slim"), server_model="mlp", rounds=1)
    ready = stage(plan, Storage())
    sizes = [sum(p.numel() for p in ready.env.build(k, None).parameters()) for k in range(6)]
    assert sizes == [4810, 4810, 1810, 1810, 4810, 1810], "in pairs, then one each"
    result = start(plan, out=None)
    public = len(ready.env.public)
    assert result.bytes_by_field()["up"] == {"logits": 6 * public * 10 * 4, "index": 6 * public * 8}
    assert result.bytes()["down"] == 0, "nothing is known before the first round"


def test_a_round_tells_what_the_paper_measures() -> None:
    result = start(federation(FedTKD(), rounds=2), out=None)
    facts = json.loads(json.dumps(result.rows[-1]["facts"]))
    assert facts["answered"] == list(range(6))
    assert len(facts["client_logits"]) == 6
    assert all(0 < a <= 1 for a in facts["client_logits"])
    assert 0 < facts["global_logits"] <= 1
    assert len(facts["class_weights"]) == 10
    assert all(0 <= w <= 0.2 for w in facts["class_weights"])
    assert set(facts["module_seconds"]) == {"train", "identify", "fuse", "weigh"}
    assert result.rows[-1]["models"]["personal"]["accuracy"] > 0.3
    assert "identification" not in result.rows[-1], "nobody is malicious"


@pytest.fixture(scope="module")
def under_attack() -> dict[str, Any]:
    quick = {"lr": 3e-3, "epochs": 2}
    plans = {
        "fedtkd": FedTKD(gather=Identify(server_epochs=6, server_lr=3e-3), **quick),
        "fedmd": FedMD(**quick),
        "feddistill": FedDistill(**quick),
        "fedmd, identified": FedMD(gather=Identify(server_epochs=6, server_lr=3e-3), **quick),
    }
    return {
        name: start(federation(method, attack="logit-flip", malicious=0.5), out=None) for name, method in plans.items()
    }


@pytest.mark.parametrize("name", ["fedtkd", "fedmd, identified"])
def test_who_flips_is_found_from_the_first_round_on(under_attack: dict[str, Any], name: str) -> None:
    found = under_attack[name].summary()["identification"]
    assert found[0] == {"round": 1, "trusted": [0, 2, 4], "precision": 1.0, "recall": 1.0}
    assert [entry["recall"] for entry in found] == [1.0] * 5


def test_fedtkd_never_suspects_an_honest_client_here(under_attack: dict[str, Any]) -> None:
    assert [entry["precision"] for entry in under_attack["fedtkd"].summary()["identification"]] == [1.0] * 5


def test_global_logits_hold_under_attack_where_the_mean_does_not(under_attack: dict[str, Any]) -> None:
    right = {name: result.rows[-1]["facts"]["global_logits"] for name, result in under_attack.items()}
    assert right["fedtkd"] >= 0.98
    assert right["fedmd"] < right["fedmd, identified"] - 0.02
    assert right["fedtkd"] > max(right["fedmd"], right["feddistill"])


def test_without_identification_everyone_is_believed() -> None:
    result = start(federation(FedTKD(gather=Everyone()), rounds=1), out=None)
    assert "trusted" not in result.rows[0]["facts"]
    assert set(result.rows[0]["facts"]["module_seconds"]) == {"fuse", "weigh"}


@dataclass(frozen=True)
class Forged(Attack):
    """A client that sends logits it should not."""

    forge: Callable[[PublicLogits], PublicLogits]

    def upload(self, env: Any, upload: PublicLogits, down: Any) -> PublicLogits:
        return self.forge(upload)


def _at(u: PublicLogits, value: float) -> PublicLogits:
    logits = u.logits.clone()
    logits[5, 3] = value
    return replace(u, logits=logits)


MALFORMED: dict[str, tuple[Callable[[PublicLogits], PublicLogits], str]] = {
    "count": (lambda u: PublicLogits(u.logits[:-1], u.index[:-1]), "shape"),
    "classes": (lambda u: replace(u, logits=u.logits[:, :-1]), "shape"),
    "index": (lambda u: replace(u, index=u.index.flip(0)), "index is not that of the public samples"),
    "type": (lambda u: replace(u, logits=u.logits.double()), "float64"),
    "nan": (lambda u: _at(u, float("nan")), "not finite"),
    "huge": (lambda u: _at(u, 1e30), "too large"),
    "minus huge": (lambda u: _at(u, -1e30), "too large"),
}


@pytest.mark.parametrize("how", MALFORMED)
def test_malformed_logits_are_refused_by_name_and_the_round_goes_on(how: str) -> None:
    forge, why = MALFORMED[how]
    plan = federation(FedTKD(), rounds=1, samples=400, clients=3)
    ready = stage(plan, Storage())
    honest = ready.party
    ready = replace(ready, party=lambda k: Party(honest(k).data, (Forged(forge),) if k == 1 else ()))
    with transport(plan, ready, ready.env.shelf("clients")) as link:
        done = next(rounds(plan.method, ready.env, link, lambda t: active(plan, t), 1))
    assert set(done.missing) == {1}
    assert why in done.missing[1]
    assert plan.method.facts(ready.env.at(0), done.server)["answered"] == [0, 2]
    assert torch.isfinite(done.server.wisdom.logits).all()


def test_nothing_is_told_of_a_round_nobody_answered(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no reply was used in 2 rounds"):
        start(federation(FedTKD(), rounds=2, samples=400, clients=3, drop=1.0), out=tmp_path, name="nobody")
    assert [row["facts"] for row in RunDir.open(tmp_path / "nobody").rows()] == [{}, {}]


def test_settings_of_the_default_gather_can_be_given_alone() -> None:
    plan = federation({"name": "fedtkd", "gather": {"server_epochs": 3}})
    assert plan.method.gather == Identify(levelled=0.05, server_epochs=3)
    plan = federation({"name": "fedtkd", "gather": {"levelled": 0, "epsilon": 0.25}})
    assert plan.method.gather == Identify(epsilon=0.25)


def test_a_public_set_of_other_classes_is_refused(tmp_path: Any) -> None:
    import numpy as np

    x = np.random.default_rng(0).integers(0, 255, (40, 8, 8), dtype=np.uint8)
    file = tmp_path / "other.npz"
    np.savez(file, x_train=x, y_train=np.arange(40) % 4, x_test=x, y_test=np.arange(40) % 4)
    with pytest.raises(UsageError, match="fedtkd needs samples of the data's own classes"):
        stage(federation(FedTKD(), public=str(file)), Storage())
