"""The files that the guide hands out: services for systemd, and the compose file."""

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml", reason="reads the compose file")

DOCS = Path(__file__).parents[2] / "docs" / "deploy"
UNITS = ("fedstill-hub.service", "fedstill-site.service")


def settings(unit: str) -> dict[str, list[str]]:
    """A unit's settings by name, lines that go on joined."""
    found: dict[str, list[str]] = {}
    for line in (DOCS / unit).read_text().replace("\\\n", " ").splitlines():
        if "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def command(unit: str) -> list[str]:
    """The words of the command that a unit starts, after the program."""
    program, *words = shlex.split(settings(unit)["ExecStart"][0])
    assert program == "/opt/fedstill/bin/fedstill"
    return words


def known_options(words: list[str]) -> None:
    """Every option is one of the command's own."""
    from typer.main import get_command

    from fedstill.cli import app

    parser: Any = get_command(app)
    made = parser.commands[words[0]]
    known = {name for parameter in made.params for name in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known


@pytest.mark.parametrize("unit", UNITS)
def test_a_unit_keeps_its_files_from_others(unit: str) -> None:
    made = settings(unit)
    for name, wanted in {
        "User": "fedstill", "UMask": "0077", "StateDirectoryMode": "0700", "NoNewPrivileges": "true",
        "ProtectSystem": "strict", "ProtectHome": "true", "CapabilityBoundingSet": "",
    }.items():  # fmt: skip
        assert made[name] == [wanted], name
    assert made["Restart"][0] in ("always", "on-failure")
    state = Path("/var/lib") / made["StateDirectory"][0]
    words = command(unit)
    assert words[words.index("--state") + 1] == str(state)
    known_options(words)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
@pytest.mark.parametrize("unit", UNITS)
def test_systemd_finds_no_fault_in_a_unit(unit: str) -> None:
    said = subprocess.run(["systemd-analyze", "verify", str(DOCS / unit)], capture_output=True, text=True).stderr
    assert not re.search(r"Unknown|Failed to parse|Invalid", said), said


def test_a_hub_that_starts_again_keeps_the_sites_that_were_let_in(services: dict[str, Any]) -> None:
    """A list of keys at its start would be all that it lets in: sites that came later would be shut out."""
    for words in (command("fedstill-hub.service"), shlex.split(services["hub"]["command"])):
        assert "--cert" in words
        assert "--allow" not in words


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    return dict(yaml.safe_load((DOCS / "compose.yaml").read_text())["services"])


def test_a_container_has_one_partys_secrets(services: dict[str, Any]) -> None:
    """Each site sees its own key and data and no other's; the hub sees public keys, and no site's private one."""
    assert set(services) == {"hub", "site-a", "site-b", "site-c"}
    for name, service in services.items():
        mounted = {volume.split(":")[1] for volume in service["volumes"]}
        secrets = {path for path in mounted if re.fullmatch(r"/certs/(site-\w|server\.key|ca\.key)", path)}
        assert secrets == ({"/certs/server.key"} if name == "hub" else {f"/certs/{name}"})
        assert {path for path in mounted if path.startswith("/data")} == (
            set() if name == "hub" else {f"/data/{name}.npz"}
        )
        assert all(v.endswith(":ro") for v in service["volumes"] if not v.endswith(":/state"))
        assert f"{name}:/state" in service["volumes"]


def test_a_container_runs_as_nobody_in_particular(services: dict[str, Any]) -> None:
    recipe = (DOCS.parents[1] / "Dockerfile").read_text(encoding="utf-8")
    assert re.search(r"^USER fedstill$", recipe, re.M)
    assert recipe.index("USER fedstill") < recipe.index("ENTRYPOINT")
    assert '".[flower,privacy]"' in recipe  # --private and --secure-sums need the second
    for service in services.values():
        assert service["build"] == {"context": "../.."}
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]


def test_a_containers_command_is_one_of_fedstills(services: dict[str, Any]) -> None:
    """Its options exist, and every file it names is mounted; only the hub has a port."""
    for name, service in services.items():
        words = shlex.split(service["command"])
        known_options(words)
        mounted = {volume.split(":")[1] for volume in service["volumes"]}
        files = [word for word in words if word.startswith(("/certs", "/data"))]
        assert set(files) <= mounted
        assert ("ports" in service) == (name == "hub")


@pytest.mark.skipif(shutil.which("docker") is None, reason="no docker here")
def test_docker_reads_the_compose_file(tmp_path: Path) -> None:
    """`docker compose config` needs no daemon; where the plugin is missing there is nothing to ask."""
    if subprocess.run(["docker", "compose", "version"], capture_output=True).returncode:
        pytest.skip("docker has no compose here")
    said = subprocess.run(
        ["docker", "compose", "-f", str(DOCS / "compose.yaml"), "config", "--quiet"], capture_output=True, text=True
    )
    assert said.returncode == 0, said.stderr
