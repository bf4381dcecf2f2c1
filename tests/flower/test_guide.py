"""The guide, word for word, on this machine; the services' commands, and a site started from its kit."""

import contextlib
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from federation import LONG, RUNS, SITES, STARTS, Federation, free_port, waited
from test_units import command, yaml

from fedstill.core.record import leaves
from fedstill.experiment.rundir import RunDir

pytestmark = [pytest.mark.xdist_group("deploy"), pytest.mark.filterwarnings("ignore::DeprecationWarning"), LONG]
GUIDE = Path(__file__).parents[2] / "docs" / "deploy.md"


def blocks(port: int) -> list[str]:
    """The commands of "Three sites on one machine", in their order, to the end of the run in the simulator.

    They are the guide's to the letter, but for the port: 9080 may be in use here.
    """
    part = GUIDE.read_text().split("## Three sites on one machine")[1].split("`deploy` waits for")[0]
    part = part.replace(":9080", f":{port}").replace("fedstill hub ", f"fedstill hub --port {port} ")
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
    keys, data, hub, sites, experiment = blocks(free_port())
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


def test_a_hub_that_drips_does_not_keep_a_site(sites_data: dict[str, Path], tmp_path: Path) -> None:
    """Its answer comes byte by byte and never ends, each byte within the site's patience: SIGTERM ends the site."""
    listening = socket.create_server(("127.0.0.1", 0))
    asked, over = threading.Event(), threading.Event()

    def drip() -> None:
        line, _ = listening.accept()
        with line, contextlib.suppress(OSError):
            line.recv(1 << 16)
            asked.set()
            line.sendall(b"HTTP/1.1 200 OK\r\nX-Long: ")
            while not over.wait(0.5):
                line.sendall(b"x")

    threading.Thread(target=drip, daemon=True).start()
    made = Federation(tmp_path, secure=False)
    made.address = f"127.0.0.1:{listening.getsockname()[1]}"
    try:
        made.start_site("site-a", sites_data["site-a"], wait=False)
        assert asked.wait(STARTS)
        made.processes["site-a"].terminate()
        assert made.processes["site-a"].wait(STARTS) == 0
        assert "connected to" not in made.log("site-a")
    finally:
        over.set()
        made.close()
        listening.close()


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
        for site in ("site-a", "site-b", "site-c"):
            terminal.type(f"fedstill hub --state {tmp_path}/state-hub/hub --allow {site}.pub")
        for site in ("site-a", "site-b"):
            made.run(site, *here("fedstill-site.service", site))
        with tarfile.open(tmp_path / "site-c.tar") as tar:
            tar.extractall(tmp_path, filter="data")
        log = terminal.leave_running(f"cd site-c-kit && sh start.sh {sites_data['site-c']}", "site-c.log")
        for site in ("site-a", "site-b"):
            made.until_logged(site, "connected to")
        waited(lambda: "connected to" in log.read_text(), STARTS, "site-c from its kit")
        (tmp_path / "hub").symlink_to(tmp_path / "state-hub" / "hub")
        one_round_with_all(made)
    finally:
        terminal.close()
        made.close()


def one_round_with_all(made: Federation) -> None:
    home = made.deploy({"method": {"name": "fedavg", "epochs": 1}, "model": "mlp", "rounds": 1})
    (row,) = RunDir.open(home).rows()
    assert row["missing_sites"] == {}
    assert sorted(row["client_seconds"]) == ["0", "1", "2"]


def container(name: str, service: dict[str, Any], made: Federation, data: dict[str, Path]) -> tuple[list[str], Path]:
    """A service's command, and a folder that has what its container has: the files it mounts, and its own state."""
    root = made.folder / "containers" / name
    for volume in service["volumes"]:
        here, there, *_ = volume.split(":")
        target = root / there.removeprefix("/")
        if here.startswith("./"):
            target.parent.mkdir(parents=True, exist_ok=True)
            file = Path(here)
            shutil.copy(data[file.stem] if file.suffix == ".npz" else made.folder / file.name, target)
        else:
            target.mkdir(parents=True)
    words = [f"{root}{word}" if word.startswith("/") else word for word in shlex.split(service["command"])]
    return [{"hub:9080": made.address, "9080": str(made.port)}.get(word, word) for word in words], root


def test_the_compose_files_commands_run(sites_data: dict[str, Path], tmp_path: Path) -> None:
    """Each container as a process: its own command and environment, with the files that it mounts and no others."""
    services = yaml.safe_load((GUIDE.parent / "deploy" / "compose.yaml").read_text())["services"]
    made = Federation(tmp_path)
    needed = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    try:
        for name in services:
            if name != "hub":
                made.key(name)
        for name, service in services.items():
            words, root = container(name, service, made, sites_data)
            env = {
                key: f"{root}{value}" if value.startswith("/") else value
                for key, value in service["environment"].items()
            }
            made.run(name, *words, env={**needed, **env})
            if name == "hub":
                made.until_logged("hub", "hub ready")
                (tmp_path / "hub").symlink_to(root / "state" / "hub")
                keys = [word for site in SITES for word in ("--allow", f"{root}/certs/{site}.pub")]
                made.run("keys", "hub", "--state", f"{root}/state/hub", *keys, env={**needed, **env})
                assert made.processes.pop("keys").wait(STARTS) == 0, made.log("keys")
        for name in services:
            if name != "hub":
                made.until_logged(name, "connected to")
        one_round_with_all(made)
    finally:
        made.close()
