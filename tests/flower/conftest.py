"""The fixtures of the deployed form: one hub with three sites for a module's tests."""

import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from federation import SITES, Federation

from fedstill.data import load
from fedstill.flower.flwr_env import prepare


@pytest.fixture(scope="session", autouse=True)
def flower(tmp_path_factory: pytest.TempPathFactory) -> None:
    pytest.importorskip("flwr", reason="the deployed form needs the extra fedstill[flower]")
    prepare(tmp_path_factory.mktemp("flwr-home"))
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _interrupted)  # so that processes are stopped when the tests are


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.fixture(scope="session")
def sites_data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """120 digits for each of three sites, and 60 for all as a public set."""
    folder = tmp_path_factory.mktemp("data")
    digits = load("digits")
    order = np.random.default_rng(0).permutation(len(digits.train))
    cuts = {"site-a": order[:120], "site-b": order[120:240], "site-c": order[240:360], "public": order[360:420]}
    for name, index in cuts.items():
        np.savez(folder / f"{name}.npz", x_train=digits.train.x[index].numpy(), y_train=digits.train.y[index].numpy())
    return {name: folder / f"{name}.npz" for name in cuts}


@pytest.fixture(scope="session")
def federation(tmp_path_factory: pytest.TempPathFactory, sites_data: dict[str, Path]) -> Iterator[Federation]:
    """A hub with certificates and keys, and three sites."""
    made = Federation(tmp_path_factory.mktemp("federation"))
    made.public = sites_data["public"]
    try:
        made.start_hub(*SITES, "rogue")
        for name in SITES:
            made.start_site(name, sites_data[name], "--public", str(sites_data["public"]), wait=False)
        for name in SITES:
            made.until_logged(name, "connected to")
        yield made
    finally:
        made.close()
