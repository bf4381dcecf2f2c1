"""Simulator and deployment give the same model, whatever the method exchanges."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from federation import FEDSTILL, LONG, RUNS, SITES, Federation
from local_post import local_run
from smallest import small_method
from test_messages import sites_of

import fedstill
from fedstill.core.record import dumps, leaves
from fedstill.core.value import plain
from fedstill.experiment.rundir import RunDir
from fedstill.report.catalogue import methods

pytestmark = [pytest.mark.xdist_group("deploy"), pytest.mark.filterwarnings("ignore::DeprecationWarning")]  # of Flower

DIFFERENT = {"fedtkd": ["mlp", "lenet5", "cnn3"]}
"""Who gets a different network at every site; the rest have one."""


def plan_of(name: str, public: Path) -> dict[str, Any]:
    method = small_method(name)
    plan: dict[str, Any] = {"method": plain(method), "rounds": 3, "seed": 4}
    plan |= {"models": DIFFERENT[name]} if name in DIFFERENT else {"model": "mlp"}
    return {**plan, "public": str(public)} if method.needs_public else plan


DEPLOYED = [name for name in methods if methods[name].federated]
"""Every registered method but what is no federation."""


@pytest.mark.parametrize("name", [n if n in ("fedavg", "fedtkd") else pytest.param(n, marks=LONG) for n in DEPLOYED])
def test_the_deployed_model_is_the_simulated_one(
    name: str, federation: Federation, sites_data: dict[str, Path], tmp_path: Path
) -> None:
    """Three sites, three rounds: the server's whole state agrees to 1e-6, and so do AMP, FM and WLP."""
    plan = plan_of(name, sites_data["public"])
    simulated = fedstill.run(
        **{**plan, "data": [str(sites_data[s]) for s in SITES]},
        active=1.0,
        workers="inline",
        out=tmp_path,
        name="simulated",
    )
    home = federation.deploy({**plan, "name": f"same-{name}"})
    here, there = (RunDir.open(path).latest()[0] for path in (tmp_path / "simulated", home))
    assert here is not None
    assert there is not None
    mine, theirs = dict(leaves(here.server)), dict(leaves(there.server))
    assert mine.keys() == theirs.keys()
    apart = [float((mine[n].double() - theirs[n].double()).abs().max()) for n in mine if mine[n].numel()]
    assert max(apart) <= 1e-6 if apart else dumps(here.server) == dumps(there.server)  # `local` only counts steps
    assert fedstill.Result.read(home).client_names == SITES  # what reports call them
    rows = RunDir.open(home).rows()
    assert [row["missing"] for row in rows] == [{}, {}, {}]
    for row, wanted in zip(rows, simulated.rows, strict=True):
        assert row["models"].keys() == wanted["models"].keys()
        for model, scores in wanted["models"].items():
            for metric in ("amp", "fm", "wlp"):
                assert row["models"][model][metric] == pytest.approx(scores[metric], abs=1e-6)
    if name == "fedkf":  # the generator stays on the site, and is the simulated one
        (kept,) = (federation.folder / "state-site-b" / "runs").glob(f"same-{name}-*/000002.safetensors")
        own, simulated_own = dict(leaves(fedstill.core.record.load(kept))), dict(leaves(here.clients[1]))
        assert max(float((own[n] - simulated_own[n]).abs().max()) for n in own) <= 1e-6


def test_models_of_other_networks_are_examined_as_in_the_simulator(sites_data: dict[str, Path], tmp_path: Path) -> None:
    """FedDF has a student for each network: three sites, three networks, six models of which every site has marks."""
    plan = {
        "method": plain(small_method("feddf", distill_steps=2, proxy=64)), "models": ["mlp", "lenet5", "cnn3"],
        "public": "digits", "rounds": 1, "seed": 4, "active": 1.0,
    }  # fmt: skip
    here = [str(sites_data[s]) for s in SITES]
    simulated = fedstill.run(**{**plan, "data": here}, workers="inline", out=None)
    (row,) = local_run(sites_of(sites_data, tmp_path), tmp_path / "runs", **{**plan, "model": "auto"})
    assert row["unexamined_sites"] == []
    assert "global (as client 1)" in row["models"]
    assert row["models"].keys() == simulated.rows[0]["models"].keys()
    for name, scores in simulated.rows[0]["models"].items():
        assert row["models"][name]["accuracy_per_client"] == pytest.approx(scores["accuracy_per_client"]), name


def test_the_command_brings_the_run_home(federation: Federation, tmp_path: Path) -> None:
    """`fedstill deploy` prints the result; its folder serves `fedstill export`; --status says it is over."""
    toml = tmp_path / "plan.toml"
    toml.write_text('rounds = 2\nactive = 1.0\nclients = 3\nmodel = "mlp"\n[method]\nname = "fedavg"\nepochs = 1\n')
    line = [
        "--hub",
        federation.address,
        "--ca",
        str(federation.ca),
        "--token",
        str(federation.folder / "hub" / "token"),
    ]

    def fedstill_says(*words: str) -> str:
        made = subprocess.run(
            [*FEDSTILL, *words], cwd=tmp_path, capture_output=True, text=True, timeout=RUNS,
            env={**os.environ, "HOME": str(tmp_path)},
        )  # fmt: skip
        assert made.returncode == 0, made.stderr
        return made.stdout

    found = json.loads(fedstill_says("deploy", str(toml), *line, "--json"))
    assert found["rounds"] == 2
    assert set(found["models"]) == {"active", "overall"}
    assert len(found["models"]["overall"]["accuracy_per_client"]) == 3
    assert (tmp_path / "runs" / "plan" / "models" / "overall.safetensors").exists()
    assert "finished completed" in fedstill_says("deploy", str(toml), *line, "--status")
    assert "overall" in fedstill_says("export", "runs/plan", "out.safetensors")
