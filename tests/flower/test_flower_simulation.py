"""Flower's simulation runtime gives the bits of the local simulator."""

from pathlib import Path
from typing import Any

import pytest

import fedstill
from fedstill.core.errors import UsageError
from fedstill.core.record import leaves
from fedstill.experiment.rundir import RunDir

pytestmark = [pytest.mark.xdist_group("deploy"), pytest.mark.filterwarnings("ignore")]  # of Ray and Flower


def test_ray_gives_the_same_bits(tmp_path: Path) -> None:
    """FedKF, whose clients keep a generator: two rounds with the same weights and the same client states."""
    pytest.importorskip("ray", reason="Flower's simulation needs fedstill[flower]")
    plan: dict[str, Any] = {
        "method": {"name": "fedkf", "epochs": 1, "noise": 8, "channels": 4}, "data": "digits", "samples": 300,
        "clients": 4, "active": 0.5, "rounds": 2, "model": "mlp",
    }  # fmt: skip
    fedstill.run(**plan, workers="inline", out=tmp_path, name="local")
    fedstill.run(**plan, workers="2", transport="flower-simulation", out=tmp_path, name="ray")
    local, ray = (RunDir.open(tmp_path / name).latest()[0] for name in ("local", "ray"))
    assert local is not None
    assert ray is not None
    for here, there in ((local.server, ray.server), *((local.clients[k], ray.clients[k]) for k in local.clients)):
        mine, theirs = dict(leaves(here)), dict(leaves(there))
        assert mine.keys() == theirs.keys()
        assert all(mine[n].equal(theirs[n]) for n in mine)


def test_objects_do_not_travel(tmp_path: Path) -> None:
    import numpy as np

    x, y = np.zeros((20, 8, 8), np.uint8), np.arange(20) % 2
    with pytest.raises(UsageError, match="names or paths"):
        fedstill.run("fedavg", data=[(x, y), (x, y)], transport="flower-simulation", active=1.0, out=None)


def test_a_deployed_plan_is_not_run_here(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="fedstill deploy"):
        fedstill.run("fedavg", data="digits", transport="flower", out=None)
