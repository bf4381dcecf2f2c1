"""The audit bites where nothing is protected, and does not where ε is 1; its sums are made by hand."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from smallest import small_experiment, small_method
from torch import nn, tensor

pytest.importorskip("opacus")

from fedstill.core.errors import UsageError
from fedstill.experiment.audit import audit, observed_turns, opened, own_others
from fedstill.experiment.audit_targets import by_discriminator
from fedstill.experiment.inference import (
    auc,
    bootstrap,
    class_pull,
    correlation,
    first_linear,
    inputs_from_step,
    likelihood_ratio,
    likeness,
    tpr,
)
from fedstill.experiment.run import start
from fedstill.experiment.rundir import RunDir
from fedstill.experiment.shorthand import wrapped

SHOWN = {"samples": 240, "clients": 2, "active": 2, "rounds": 3, "alpha": 1.0, "local_test": 0.5}


def audited(folder: Path, method: Any, private: str | None = None, shadows: int = 0, **settings: Any) -> dict[str, Any]:
    start(small_experiment(method, **SHOWN, wrappers=wrapped(private), **settings), out=folder, name="run")
    return audit(folder / "run", shadows)


def test_without_privacy_the_audit_bites_and_with_epsilon_1_it_does_not(tmp_path: Path) -> None:
    """Sixty samples a client, learnt by heart: members are told from others, labels read, a sample seen.

    At ε = 1 the interval of every AUC reaches below .55, and the sample read off a step is like none.
    """
    method = small_method("fedavg", epochs=25, lr=0.1)
    free = audited(tmp_path / "free", method, shadows=2)
    rows = {(row["target"], row["attack"]): row for row in free["membership"]}
    upload = rows["upload of model weights", "loss threshold"]
    assert upload["auc"]["low"] > 0.55
    assert {attack for _, attack in rows} == {"loss threshold", "likelihood ratio, 2 shadow runs"}
    assert free["label_shares"]["low"] > 0.5
    assert free["reconstruction"]["likeness"] == pytest.approx(1, abs=1e-3)
    assert free["privacy"] == {}
    assert json.loads((tmp_path / "free/run/audit.json").read_text()) == free

    kept = audited(tmp_path / "kept", method, "epsilon=1,delta=1e-3")
    assert kept["privacy"]["epsilon_samples"] <= 1
    assert all(row["auc"]["low"] < 0.55 for row in kept["membership"])
    assert all(row["tpr"]["value"] < 0.1 for row in kept["membership"])
    assert kept["reconstruction"]["likeness"] < 0.9


def test_public_logits_are_attacked_by_a_model_that_is_brought_to_them(tmp_path: Path) -> None:
    found = audited(tmp_path, small_method("fedmd", epochs=2))
    assert [row["target"] for row in found["membership"]] == ["upload of logits on public samples"]
    assert found["label_shares"] is None
    assert found["reconstruction"] == {"skipped": "no weights leave the clients of this method"}


def test_prototypes_generators_and_discriminators_are_attacked_too(tmp_path: Path) -> None:
    """Networks that learnt sixty samples by heart put these nearer to their own class means than others."""
    found = audited(tmp_path / "proto", small_method("fedproto", epochs=25, lr=0.1))
    (row,) = found["membership"]
    assert (row["target"], row["attack"]) == ("upload of mean features per class", "distance to the prototype")
    assert row["auc"]["low"] > 0.5
    found = audited(tmp_path / "dafkd", small_method("dafkd", local_steps=5))
    told = {row["target"]: row for row in found["membership"]}
    for target in ("upload of a generator of local data", "upload of a domain discriminator"):
        assert 0 <= told[target]["auc"]["low"] <= told[target]["auc"]["high"] <= 1
        assert told[target]["members"] == told[target]["others"] == 120


def test_a_discriminator_that_knows_its_samples_gives_them_away(tmp_path: Path) -> None:
    """A score of 1 for members and 0 for others is an AUC of 1: the reader's score is the discriminator's."""
    start(small_experiment(small_method("dafkd", local_steps=1), **SHOWN), out=tmp_path, name="run")
    scene = opened(RunDir.open(tmp_path / "run"))
    each = dict(observed_turns(scene))[0]
    score = by_discriminator(each)
    assert score is not None
    own, _ = own_others(scene, 0)
    duel = each.method.duel(each.env, each.upload.weights, each.upload.discriminator).eval()  # type: ignore[attr-defined]
    assert np.allclose(score(own), duel(own.inputs())[1].detach().numpy())


def test_every_model_is_attacked_in_its_own_network(tmp_path: Path) -> None:
    """FedDF has a student and an average for each of two networks, and the last of them is made again by shadows."""
    method = small_method("feddf", distill_steps=1)
    found = audited(tmp_path, method, shadows=2, models="mlp,resnet8-slim")
    targets = [row["target"] for row in found["membership"]]
    models = [f"model {name}{whose}" for name in ("global", "average") for whose in ("", " (as client 1)")]
    assert targets == [*models, "upload of model weights", "model average (as client 1)"]


def test_where_only_a_head_leaves_no_model_and_no_step_are_attacked(tmp_path: Path) -> None:
    found = audited(tmp_path, small_method("lg-fedavg"), model="mlp")
    assert found["membership"] == []
    assert found["reconstruction"] == {"skipped": "only a part of the model leaves the clients of this method"}
    assert found["label_shares"]["clients"] == 2


def test_what_comes_down_of_another_network_tells_nothing_of_a_step(tmp_path: Path) -> None:
    """The server's network is that of client 1, so the step of client 0 is not seen; its whole model is."""
    found = audited(tmp_path, small_method("dense"), models="mlp,resnet8-slim", server_model="resnet8-slim")
    assert "of another network" in found["reconstruction"]["skipped"]
    assert found["label_shares"]["clients"] == 1
    assert [row["members"] for row in found["membership"] if row["target"] == "upload of model weights"] == [120]


def test_a_generator_of_features_makes_no_samples_to_compare_with(tmp_path: Path) -> None:
    found = audited(tmp_path, small_method("dafkd", local_steps=1, generator="features"))
    targets = {row["target"] for row in found["membership"]}
    assert "upload of a domain discriminator" in targets
    assert "upload of a generator of local data" not in targets


def test_what_the_server_does_not_see_is_not_attacked(tmp_path: Path) -> None:
    plan = small_experiment(small_method("fedavg"), **SHOWN, wrappers=wrapped(secure_sums=True))
    start(plan, out=tmp_path, name="run")
    found = audit(tmp_path / "run", 0)
    assert {row["target"] for row in found["membership"]} == {"model active", "model overall"}
    assert found["label_shares"] is None
    assert "sums over the round's clients only" in found["reconstruction"]["skipped"]


def test_auc_and_tpr_count_pairs() -> None:
    """Members 3, 1 and others 2, 0: three of four pairs are in order; ties count half. Of 200 others 2 may exceed."""
    assert auc(np.array([3.0, 1.0]), np.array([2.0, 0.0])) == 0.75
    assert auc(np.ones(5), np.ones(7)) == 0.5
    assert tpr(np.array([198.5, 197.5, 196.5, 300.0]), np.arange(200.0)) == 0.75


def test_an_interval_holds_the_value_and_shrinks_with_more_samples() -> None:
    stream = np.random.default_rng(1)
    few, many = (bootstrap(lambda v: float(v.mean()), stream.normal(size=n), stream=stream) for n in (20, 2000))
    assert few["low"] < few["value"] < few["high"]
    assert many["high"] - many["low"] == pytest.approx(4 * 0.98 / np.sqrt(2000), rel=0.15)
    assert few["high"] - few["low"] > 5 * (many["high"] - many["low"])


def test_the_likelihood_ratio_tells_a_sample_that_models_remember() -> None:
    """Sample 0 scores 4 where it was trained on and 0 elsewhere, sample 1 scores 1 always; spread 1 each way.

    A target of 4 and 1: for sample 0 the ratio is (16 − 0)/2 = 8 in favour of a member; for sample 1 nothing is told.
    """
    inside = np.array([[True, True], [False, False], [True, True], [False, False]])
    shadows = np.array([[5.0, 2.0], [1.0, 2.0], [3.0, 0.0], [-1.0, 0.0]])
    ratio = likelihood_ratio(np.array([4.0, 1.0]), shadows, inside)
    assert ratio[0] == pytest.approx(16 / (2 * 2))  # variance: squares of ±1 over 4 − 2 degrees of freedom, 2
    assert ratio[1] == pytest.approx(0)


def test_a_single_step_lays_the_input_of_a_linear_layer_open() -> None:
    torch.manual_seed(1)  # of all networks one whose first layer lets the sample through
    module = nn.Sequential(nn.Flatten(), nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    x = tensor([[0.2, -1.5, 3.0]])
    before = {n: t.clone() for n, t in module.state_dict().items()}
    torch.nn.functional.cross_entropy(module(x), tensor([1])).backward()
    with torch.no_grad():
        for p in module.parameters():
            p -= 0.1 * p.grad  # type: ignore[operator]
    assert first_linear(module) == "1"
    found = inputs_from_step(before, module.state_dict(), "1")
    assert torch.allclose(found.float(), x[0], atol=1e-3)
    assert likeness(found, torch.cat([torch.randn(5, 3), x])) == pytest.approx(1, abs=1e-5)
    assert first_linear(nn.Sequential(nn.Conv2d(1, 1, 3), nn.Linear(3, 3))) is None


def test_the_last_bias_goes_up_for_classes_the_client_has() -> None:
    before, after = {"head.bias": tensor([0.0, 0.0, 0.0])}, {"head.bias": tensor([0.4, 0.0, -0.4])}
    pull = class_pull(before, after, 3)
    assert pull is not None
    assert correlation([pull.numpy()], [np.array([0.7, 0.2, 0.1])])[0] == pytest.approx(0.933, abs=1e-3)
    assert class_pull({"w": tensor([1.0])}, {"w": tensor([1.0])}, 3) is None


def test_an_odd_number_of_shadow_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="shadows = 3: must be an even number"):
        audit(tmp_path, 3)
