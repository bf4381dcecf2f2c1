"""The image and the composition without a daemon: what they copy is there, what they start is a command that there is.

`FEDSTILL_DOCKER_TESTS=1` also runs the image's own steps in an empty environment, in a folder with nothing but what is
copied into the image; it installs everything anew, which takes minutes.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from docs.pages import parse

from fedstill.cli import app

ROOT = Path(__file__).parents[1]
COMPOSE = ROOT / "docs" / "deploy" / "compose.yaml"


def steps(text: str) -> list[tuple[str, str]]:
    """A Dockerfile's instructions: the word and what follows, continued lines joined."""
    lines = re.sub(r"\\\n", " ", text).splitlines()
    return [
        (word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines if re.match(r"[A-Z]", line))
    ]


@pytest.fixture(name="image")
def _image() -> list[tuple[str, str]]:
    return steps((ROOT / "Dockerfile").read_text(encoding="utf-8"))


def test_everything_that_the_image_copies_is_there_and_not_left_out(image: list[tuple[str, str]]) -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    copied = [word for kind, rest in image if kind == "COPY" for word in rest.split()[:-1]]
    assert copied
    for word in copied:
        assert (ROOT / word).exists(), word
        assert word not in ignored, word


def test_the_image_runs_as_nobody_in_particular_and_starts_the_command(image: list[tuple[str, str]]) -> None:
    known = dict(image)
    assert known["USER"] == "fedstill"
    assert known["ENTRYPOINT"] == '["fedstill"]'
    assert image.index(("USER", "fedstill")) > max(i for i, (kind, _) in enumerate(image) if kind == "RUN")


def test_every_service_starts_a_command_that_there_is_with_files_that_are_mounted() -> None:
    group, services = typer.main.get_command(app), yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]
    assert set(services) == {"hub", "site-a", "site-b", "site-c"}
    for name, service in services.items():
        context: Any = service["build"]["context"]
        assert (COMPOSE.parent / context / "Dockerfile").exists()
        words = shlex.split(service["command"])
        parse(group, words)
        mounted = {volume.split(":")[1] for volume in service["volumes"]}
        for word in words:
            if word.startswith(("/certs", "/data")):
                assert word in mounted, f"{name}: {word}"
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]


@pytest.mark.skipif(
    not os.environ.get("FEDSTILL_DOCKER_TESTS"), reason="installs everything anew: FEDSTILL_DOCKER_TESTS=1"
)
def test_the_image_s_steps_give_a_command_that_works(image: list[tuple[str, str]], tmp_path: Path) -> None:
    room = tmp_path / "opt"
    room.mkdir()
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    environment = {"PATH": f"{tmp_path / 'venv' / 'bin'}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    environment |= {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    for kind, rest in image:
        if kind == "COPY":
            *sources, _ = rest.split()
            for source in sources:
                copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
                copy(ROOT / source, room / source)
        if kind == "RUN" and "pip" in rest:  # making a user is the image's own affair
            subprocess.run(["sh", "-ec", rest], cwd=room, env=environment, check=True)
    done = subprocess.run(["fedstill", "hub", "--help"], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "sites connect to it" in done.stdout
