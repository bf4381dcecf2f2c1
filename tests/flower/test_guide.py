"""The guide, word for word, on this machine; the services' commands, and a site started from its kit."""

import contextlib
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from federation import LONG, RUNS, STARTS, Federation, waited
from test_units import command

from fedstill.core.record import leaves
from fedstill.experiment.rundir import RunDir

pytestmark = [pytest.mark.xdist_group("deploy"), pytest.mark.filterwarnings("ignore::DeprecationWarning"), LONG]
GUIDE = Path(__file__).parents[2] / "docs" / "deploy.md"


def blocks() -> list[str]:
    """The commands of "Three sites on one machine", in their order, to the end of the run in the simulator."""
    part = GUIDE.read_text().split("## Three sites on one machine")[1].split("`deploy` waits for")[0]
    return re.findall(r"```\n(.*?)```", part, re.S)


class Terminal:
    """A folder in which the guide's lines are typed, with `fedstill` and `python` of this very installation."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        tools = folder / "bin"
        tools.mkdir()
        for name, line in {
            "fedstill": f'{sys.executable} -m fedstill "$@"',
            "python": f'{sys.executable} "$@"',
        }.items():
            (tools / name).write_text(f"#!/bin/sh\nexec {line}\n")
            (tools / name).chmod(0o755)
        self.env = {**os.environ, "HOME": str(folder), "PATH": f"{tools}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
        self.started: list[subprocess.Popen[bytes]] = []

    def type(self, lines: str) -> str:
        """Run lines to their end; what they printed."""
        done = subprocess.run(
            ["bash", "-e", "-c", lines], cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=2 * RUNS
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def leave_running(self, lines: str, log: str) -> Path:
        """Start lines that go on; where they print."""
        with (self.folder / log).open("wb") as file:
            self.started.append(
                subprocess.Popen(
                    ["bash", "-c", lines + "\nwait"], cwd=self.folder, env=self.env, stdout=file, stderr=file,
                    start_new_session=True,
                )
            )  # fmt: skip
        return self.folder / log

    def close(self) -> None:
        for process in reversed(self.started):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(20)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    made = Terminal(tmp_path)
    try:
        yield made
    finally:
        made.close()


def test_the_guide_word_for_word(terminal: Terminal) -> None:
    """Keys, data, hub, sites, deploy, and the same in the simulator: the same model, bit for bit, as the guide says."""
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", 9080)) == 0:
            pytest.skip("port 9080 is in use here")
    keys, data, hub, sites, experiment = blocks()
    terminal.type(keys)
    terminal.type(data)
    log = terminal.leave_running(hub, "hub.log")
    waited(lambda: "hub ready" in log.read_text(), STARTS, f"the hub: {log.read_text()[-1000:]}")
    log = terminal.leave_running(sites, "sites.log")
    waited(lambda: log.read_text().count("connected to") == 3, STARTS, "three sites")
    deployed, simulated = experiment.split("fedstill run ")
    terminal.type(deployed)
    there = RunDir.open(terminal.folder / "runs" / "experiment").latest()[0]
    terminal.type("mv runs/experiment deployed && fedstill run " + simulated)
    (folder,) = (path for path in (terminal.folder / "runs").iterdir() if (path / "experiment.json").exists())
    here = RunDir.open(folder).latest()[0]
    assert there is not None
    assert here is not None
    ours, theirs = dict(leaves(here.server)), dict(leaves(there.server))
    assert ours.keys() == theirs.keys()
    assert all((ours[name] == theirs[name]).all() for name in ours)


def test_the_services_commands_run(sites_data: dict[str, Path], tmp_path: Path) -> None:
    """The units' own command lines, with this machine's paths; the third site is started by its kit's script."""
    made = Federation(tmp_path)
    for site in ("site-a", "site-b"):
        made.key(site)

    def here(unit: str, party: str) -> list[str]:
        """A unit's command for a party of this machine."""
        line = shlex.join(command(unit))
        if party != "hub":
            line = line.replace("site-a", party).replace(f"/data/{party}", str(sites_data[party]))
        for theirs, ours in {
            "/var/lib/fedstill": f"{tmp_path}/state-{party}", "/etc/fedstill": str(tmp_path),
            "hub.example:9080": made.address, "--port 9080": f"--port {made.port}",
        }.items():  # fmt: skip
            line = line.replace(theirs, ours)
        return shlex.split(line)

    (tmp_path / "policy.toml").write_text("least_batch = 8\n")
    terminal = Terminal(tmp_path)
    try:
        terminal.type(f"fedstill keys kit site-c --hub {made.address} --ca ca.crt")
        made.run("hub", *here("fedstill-hub.service", "hub"))
        made.until_logged("hub", "hub ready")
        for site in ("site-a", "site-b"):
            made.run(site, *here("fedstill-site.service", site))
        with tarfile.open(tmp_path / "site-c.tar") as tar:
            tar.extractall(tmp_path, filter="data")
        log = terminal.leave_running(f"cd site-c-kit && sh start.sh {sites_data['site-c']}", "site-c.log")
        for site in ("site-a", "site-b"):
            made.until_logged(site, "connected to")
        waited(lambda: "connected to" in log.read_text(), STARTS, "site-c from its kit")
        (tmp_path / "hub").symlink_to(tmp_path / "state-hub" / "hub")
        home = made.deploy({"method": {"name": "fedavg", "epochs": 1}, "model": "mlp", "rounds": 1})
        (row,) = RunDir.open(home).rows()
        assert row["missing_sites"] == {}
        assert sorted(row["client_seconds"]) == ["0", "1", "2"]
    finally:
        terminal.close()
        made.close()
