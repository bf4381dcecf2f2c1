"""A method from outside the package runs at a site that was started with its name, and at no other."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedstill.core import record
from fedstill.core.shelf import Storage
from fedstill.experiment.config import experiment
from fedstill.flower.enrolment import deployable, settle
from fedstill.flower.messages import FORMAT, Enrol, Enrolled, Refusal, Task, Work, answer
from fedstill.flower.policy import Policy
from fedstill.flower.site import Site

SOURCE = """
from dataclasses import dataclass
from fedstill.methods import FedAvg

@dataclass(frozen=True)
class Halved(FedAvg):
    def client(self, env, state, down, data):
        state, upload = FedAvg(lr=self.lr, epochs=1, gather=self.gather).client(env, state, down, data)
        return state, type(upload)({name: tensor / 2 for name, tensor in upload.weights.items()})
    client.__annotations__ = FedAvg.client.__annotations__
"""
RUN = {"run": "own", "run_id": "0" * 32}


@pytest.fixture
def halved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "sites_own.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    yield "sites_own:Halved"
    sys.modules.pop("sites_own", None)


def asked(plan: Any) -> bytes:
    return Enrol(**RUN, format=FORMAT, experiment=json.dumps(plan.plain()), signature="").dumps()


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
        enrolled = {site: answer(sites[site].answer(asked(plan))[0]) for site in sites}
        assert all(isinstance(found, Enrolled) for found in enrolled.values()), enrolled
        setting = settle("own", RUN["run_id"], plan, enrolled)  # type: ignore[arg-type]
        env = setting.env(Storage(), "cpu")
        down = record.dumps(plan.method.download(env.at(0), plan.method.init_server(env.at(0))))
        task = Task(**RUN, round=0, client=0, deadline=60.0, setting=setting.text(), kept=0)
        head, body = sites["site-a"].answer(task.dumps(), down)
        assert isinstance(answer(head), Work), answer(head)
        assert body is not None
        uploads[name] = record.loads(body).weights
    assert all((uploads[halved][n] == tensor / 2).all() for n, tensor in uploads["fedavg"].items())


def test_another_site_imports_nothing_and_says_what_to_do(
    halved: str, sites_data: dict[str, Path], tmp_path: Path
) -> None:
    plan = experiment({"method": halved, "model": "mlp", "clients": 2})
    sys.modules.pop("sites_own")
    found = answer(Site("site-a", str(sites_data["site-a"]), tmp_path).answer(asked(plan))[0])
    assert isinstance(found, Refusal)
    assert found.why == f"{halved}: code of the hub's choice; this site's policy must name it (code = [...])"
    assert "sites_own" not in sys.modules
