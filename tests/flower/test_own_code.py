"""Code from outside the package runs at a site that was started with its name or has it installed, and at no other."""

import json
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from fedstill.core import record
from fedstill.core.errors import UsageError
from fedstill.core.method import methods
from fedstill.core.shelf import Storage
from fedstill.data import datasets, partitions
from fedstill.experiment.config import experiment
from fedstill.flower.enrolment import deployable, settle
from fedstill.flower.messages import FORMAT, Enrol, Enrolled, Refusal, Task, Work, answer
from fedstill.flower.policy import Policy
from fedstill.flower.site import Site
from fedstill.models import models
from fedstill.parts.gather import gathers

SOURCE = """
import math
from dataclasses import dataclass
import numpy as np
from torch import nn
from fedstill.data.partition import IID
from fedstill.experiment.metrics import Metric
from fedstill.methods import FedAvg
from fedstill.parts.attacks import SignFlip
from fedstill.parts.gather import Remember

@dataclass(frozen=True)
class Halved(FedAvg):
    def client(self, env, state, down, data):
        state, upload = FedAvg(lr=self.lr, epochs=1, gather=self.gather).client(env, state, down, data)
        return state, type(upload)({name: tensor / 2 for name, tensor in upload.weights.items()})
    client.__annotations__ = FedAvg.client.__annotations__

@dataclass(frozen=True)
class Last(Remember): ...

@dataclass(frozen=True)
class Split(IID): ...

@dataclass(frozen=True)
class Turned(SignFlip): ...

BEST = Metric("best", "best client", "served best", over=lambda v: max(v.each))

class Net(nn.Sequential):
    def __init__(self, shape, classes):
        super().__init__(nn.Flatten(), nn.Linear(math.prod(shape), classes))

def reader():
    return np.random.default_rng(0).integers(0, 16, (120, 8, 8), dtype=np.uint8), np.arange(120) % 10
"""
THINGS = {"method": "Halved", "gather": "Last", "model": "Net", "data_set": "reader", "partition": "Split"}
"""What the file has, by the kind of thing."""
RUN = {"run": "own", "run_id": "0" * 32}


@pytest.fixture
def halved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "sites_own.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    yield "sites_own:Halved"
    sys.modules.pop("sites_own", None)


def asked(plan: Any) -> bytes:
    return Enrol(**RUN, format=FORMAT, experiment=json.dumps(plan.plain()), signature="").dumps()


def first_upload(plan: Any, sites: dict[str, Site]) -> Any:
    """What the first site sends in the first round, after both have enrolled."""
    enrolled = {name: answer(site.answer(asked(plan))[0]) for name, site in sites.items()}
    assert all(isinstance(found, Enrolled) for found in enrolled.values()), enrolled
    setting = settle("own", RUN["run_id"], plan, enrolled)  # type: ignore[arg-type]
    env = setting.env(Storage(), "cpu")
    down = record.dumps(plan.method.download(env.at(0), plan.method.init_server(env.at(0))))
    task = Task(**RUN, round=0, client=0, deadline=60.0, setting=setting.text(), kept=0)
    head, body = next(iter(sites.values())).answer(task.dumps(), down)
    assert isinstance(answer(head), Work), answer(head)
    assert body is not None
    return record.loads(body)


def test_a_site_takes_the_turns_of_a_method_it_was_started_with(
    halved: str, sites_data: dict[str, Path], tmp_path: Path
) -> None:
    """The upload is half of what FedAvg's turn at the same site sends."""
    uploads = {}
    for name in ("fedavg", halved):
        own = {"name": name, "lr": 0.05, "epochs": 1}
        plan = deployable(experiment({"method": own, "model": "mlp", "clients": 2, "active": 1.0, "seed": 4}))
        sites = {
            site: Site(site, str(sites_data[site]), tmp_path / name / site, policy=Policy(code=(halved,)))
            for site in ("site-a", "site-b")
        }
        uploads[name] = first_upload(plan, sites).weights
    assert all((uploads[halved][n] == tensor / 2).all() for n, tensor in uploads["fedavg"].items())


@pytest.mark.usefixtures("halved")
@pytest.mark.parametrize("by", ["name", "entry point"])
def test_things_of_ones_own_at_sites(
    by: str, sites_data: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By name, each in the site's policy; what is installed there is known by its short name, and needs no policy.

    The partition is that of the experiment as it was simulated; sites have data of their own, but read all of it.
    """
    names = {kind: f"sites_own:{thing}" for kind, thing in THINGS.items()}
    code = tuple(names.values())
    if by == "entry point":
        entries = {f"fedstill.{kind}": (EntryPoint(f"own-{kind}", names[kind], f"fedstill.{kind}"),) for kind in names}
        monkeypatch.setattr("fedstill.core.registry.declared_in", lambda group: entries.get(group, ()))
        for registry in (methods, gathers, models, datasets, partitions):
            monkeypatch.setattr(registry, "_entries", dict(registry._entries))
        names, code = {kind: f"own-{kind}" for kind in names}, ()
    own = {"name": names["method"], "lr": 0.05, "epochs": 1, "gather": names["gather"]}
    parts = {"model": names["model"], "partition": names["partition"]}
    plan = deployable(experiment({"method": own, **parts, "clients": 2, "active": 1.0, "seed": 4}))
    data = {"site-a": names["data_set"], "site-b": str(sites_data["site-b"])}
    sites = {name: Site(name, data[name], tmp_path / name, policy=Policy(code=code)) for name in data}
    assert {tuple(t.shape) for t in first_upload(plan, sites).weights.values()} == {(10, 64), (10,)}


def test_another_site_imports_nothing_and_says_what_to_do(
    halved: str, sites_data: dict[str, Path], tmp_path: Path
) -> None:
    plan = experiment({"method": halved, "model": "mlp", "clients": 2})
    sys.modules.pop("sites_own")
    found = answer(Site("site-a", str(sites_data["site-a"]), tmp_path).answer(asked(plan))[0])
    assert isinstance(found, Refusal)
    assert found.why == f"{halved}: code of the hub's choice; this site's policy must name it (code = [...])"
    assert "sites_own" not in sys.modules


@pytest.mark.usefixtures("halved")
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"attack": "sites_own:Turned", "malicious": 0.5}, "attack: sites are real"),
        ({"metrics": ["sites_own:BEST"]}, "metric: sites send counts of right answers only"),
    ],
)
def test_an_attack_or_a_metric_of_ones_own_goes_to_no_site(settings: dict[str, Any], said: str) -> None:
    """Neither does one of fedstill's: sites are real, and send counts of right answers only."""
    plan = experiment({"method": "fedavg", "model": "mlp", "clients": 2, **settings})
    with pytest.raises(UsageError, match=f"^{said}"):
        deployable(plan)
