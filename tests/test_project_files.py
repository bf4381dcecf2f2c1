"""What others read of the project: workflows, templates, the citation; each is whole and names what there is."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import fedstill

ROOT = Path(__file__).parents[1]
FORMS = sorted([*ROOT.glob(".github/**/*.yml"), ROOT / ".pre-commit-config.yaml", ROOT / "CITATION.cff"])
WORKFLOWS = sorted(ROOT.glob(".github/workflows/*.yml"))


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_every_form_is_valid_yaml(path: Path) -> None:
    assert isinstance(read(path), dict)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_makes_what_the_makefile_has_and_may_only_read_unless_a_job_says_more(path: Path) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step), step
            made = re.match(r"make (\S+)", step.get("run", ""))
            assert made is None or made[1] in targets, step


def test_every_promised_python_is_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    promised = {line.rpartition(" ")[2] for line in project["classifiers"] if re.search(r":: 3\.\d+$", line)}
    assert set(read(ROOT / ".github/workflows/ci.yml")["jobs"]["test"]["strategy"]["matrix"]["python"]) == promised


def test_the_citation_names_the_four_papers() -> None:
    titles = " ".join(reference["title"] for reference in read(ROOT / "CITATION.cff")["references"])
    assert len(read(ROOT / "CITATION.cff")["references"]) == 4
    for words in ("Knowledge Fusion Approach", "DaFKD", "FedRAD", "FedTKD"):
        assert words in titles


def test_the_sdist_holds_what_its_own_makefile_and_tests_need() -> None:
    """By default it would hold the tests at the top of their folder, and nothing that these tests read."""
    lines = [line.split() for line in (ROOT / "MANIFEST.in").read_text(encoding="utf-8").splitlines()]
    folders = {words[1] for words in lines if words[:1] == ["graft"]}
    files = {word for words in lines if words[:1] == ["include"] for word in words[1:]}
    assert {"benchmarks", "docs", "examples", "results", "tests"} <= folders
    assert all((ROOT / name).exists() for name in folders | files)
    own = {path.name for path in ROOT.glob("*.*") if path.suffix in (".md", ".cff", ".txt", ".yml")}
    assert own - files == {"README.md"}  # which setuptools adds itself


def test_the_changelog_has_a_section_for_the_package_s_version() -> None:
    assert f"\n## [{fedstill.__version__}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
