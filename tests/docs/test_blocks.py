"""Every block of code in the pages is run, and nothing on them is left to trust.

A comment in front of a block, which readers of the page do not see, says what a block cannot say itself: `<!-- given:
LINES -->` is run before it, in the block's language; `<!-- not run: WHY -->` lists the few that cannot be run.

- Python runs as it stands, block after block.
- Lines of a shell are read by bash (`pages.calls`), and each `fedstill …` that it would start is run here, one after
  the other, in a folder with a reader's files (`own_files`). What would take minutes is made shorter by `SHORTER`, and
  by nothing else; `UNTIL_STOPPED` are read by the command line only.
- Settings (TOML) are read by what reads them (`READERS`); a table (csv) must have as many words in every line.
- A block in any other language must be listed as not run.

`make test` builds the experiments of the methods' pages, with all their settings; `make docs-test` runs them, and what
is `SLOW`. What goes to an account on a hub (`hf://`) is read here and run by tests/report/test_publish.py.
"""

import csv
import os
import re
import shlex
import shutil
import tomllib
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
import own_files
import pytest
import typer
from pages import PAGES, ROOT, SHELL, Block, blocks, calls, name, parse

from fedstill.cli import app, main
from fedstill.cli_app import apply_settings
from fedstill.core.errors import FedstillError
from fedstill.data.reading import SHORT
from fedstill.data.sources import datasets
from fedstill.experiment.archive import Archive
from fedstill.experiment.claims import claims
from fedstill.experiment.config import Experiment, experiment, options
from fedstill.flower.policy import Policy, read_policy
from fedstill.report.catalogue import KINDS, methods

SHORTER = {
    "run": "--rounds 1 --workers inline",
    "sweep": "--rounds 1 --seeds 1 --jobs 1",
    "reproduce": "--dry-run",  # every cell is built
    "demo": "--rounds 1",
    "audit": "--shadows 0",
    "distil": "--set epochs=1",
    "results verify": "--rounds 1",
}
"""What is added to a command, which takes the last of two words on the same thing."""
FEWER = "--samples 300"
"""Added where data are a registered set: the whole of it would be loaded and trained on."""
TRIALS = "--trials 1"
"""Added to a search."""
UNTIL_STOPPED = ("hub", "site", "deploy", "watch")
"""Commands that serve, or wait for those that do: tests/flower/test_guide.py types them, three sites and a hub."""
SLOW = ("demo", "sweep", "audit")
"""Run by `make docs-test` alone, as are the methods' pages."""
EXTRAS = {"tensorboard": "tensorboard", "optuna": "optuna", "--private": "opacus"}
"""Words that ask for a package of an extra; without it the command is read, not run."""
STANDS_FOR = {"3f2a": lambda: next(iter(Archive(Path("results")))).id}
"""Words that a reader replaces."""
COMMANDS = typer.main.get_command(app)
LONG = os.environ.get("FEDSTILL_DEPLOY_TESTS") == "all"
each_page = pytest.mark.parametrize("page", PAGES, ids=name)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reader")
    own_files.make(folder)
    return folder


@pytest.fixture
def folder(files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A reader's own folder, with their files and data sets, in which they type."""
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("FEDSTILL_DATA", str(tmp_path / "data"))
    return tmp_path


def save(page: Path, folder: Path) -> None:
    """Write the files that a page tells its reader to save: blocks of Python whose first line is a file's name."""
    for block in blocks(page):
        if block.language == "python" and (file := re.match(r"# (\w+\.py)\n", block.text)):
            (folder / file[1]).write_text(block.text, encoding="utf-8")


def typed(page: Path, folder: Path) -> Iterator[list[str]]:
    """What a page tells its reader to type, program by program; a block is read when those before it have been run."""
    save(page, folder)
    for block in blocks(page):
        if block.language in SHELL:
            yield from calls(block.lines, folder)


def read(words: list[str]) -> click.Context:
    """The words of a command as the command line reads them."""
    try:
        return parse(COMMANDS, words)
    except click.ClickException as error:
        pytest.fail(f"fedstill {shlex.join(words)}: {error.format_message()}")


def built(method: str, params: dict[str, Any]) -> Experiment:
    """The experiment that a command asks for, but for the reader's own data."""
    plan: dict[str, Any] = {"method": {"name": method}}
    own = {"data", "public", *SHORT}
    wanted = {
        option: params[option] for option in options() if option not in own and params.get(option) not in (None, ())
    }
    plan |= {option: ",".join(value) if isinstance(value, tuple) else value for option, value in wanted.items()}
    apply_settings(plan, [pair for pair in params["settings"] or [] if not pair.startswith("reading.")])
    return experiment(plan)


def shortened(words: list[str]) -> list[str]:
    """A command as it is run here."""
    words = [STANDS_FOR[word]() if word in STANDS_FOR else word for word in words]
    key = " ".join(words[:2]) if words[0] == "results" else words[0]
    more = shlex.split(SHORTER.get(key, ""))
    if words[0] in ("run", "sweep") and ("--data" not in words or words[words.index("--data") + 1] in datasets):
        more += shlex.split(FEWER) if not words[1].endswith(".toml") else []
    return words + more + (shlex.split(TRIALS) if "--search" in words else [])


def runnable(words: list[str]) -> bool:
    """Whether a command ends by itself, with the packages that are installed here and with no account anywhere."""
    missing = [extra for word, extra in EXTRAS.items() if word in words and find_spec(extra) is None]
    waits = words[0] in UNTIL_STOPPED and "--explain" not in words
    slow = words[0] in SLOW and not LONG
    return not missing and not waits and not slow and not any(word.startswith("hf://") for word in words)


def run(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(shortened(words))
    assert not left.value.code, f"fedstill {shlex.join(shortened(words))}: {capsys.readouterr().err}"


def other(words: list[str]) -> None:
    """A program that is not fedstill: what it would do is checked against the project's own files."""
    program, *rest = words
    if program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
        assert set(rest) <= set(targets), shlex.join(words)
    elif program == "pip":
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        verb, wanted = rest
        package, _, extras = wanted.rstrip("]").partition("[")
        assert verb == "install", shlex.join(words)
        assert package in (project["name"], "."), shlex.join(words)
        assert set(extras.split(",") if extras else ()) <= set(project["optional-dependencies"])
    elif program == "python":
        assert rest[0] == "-", shlex.join(words)
        exec(compile(rest[1], "python", "exec"), {"__name__": "__main__"})
    elif program == "flower-supernode":
        flower = pytest.importorskip("flwr.supernode.cli.flower_supernode")
        flower._parse_args_run_supernode().parse_args(rest)
    else:
        assert words == ["source", ".venv/bin/activate"]  # which `make setup` makes


@each_page
def test_every_command_on_a_page_is_one_that_there_is(page: Path, folder: Path) -> None:
    for program, *words in typed(page, folder):
        if program != "fedstill":
            continue
        params = read(words).params
        if words[0] == "run" and not words[1].endswith(".toml"):
            assert words[1] in methods, words
            try:
                built(words[1], params)
            except FedstillError as error:
                pytest.fail(f"fedstill {shlex.join(words)}: {error}")


@each_page
def test_every_block_of_python_and_every_command_on_a_page_runs(
    page: Path, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In their order, in one folder: what one block makes, the next one finds."""
    typing = LONG or page.parent.name != "methods"
    names: dict[str, object] = {"__name__": "__main__"}
    save(page, folder)
    for block in blocks(page):
        if block.language == "python":
            exec(compile(block.lines, name(page), "exec"), names)
        for program, *words in calls(block.lines, folder) if typing and block.language in SHELL else ():
            if program != "fedstill":
                other([program, *words])
            elif runnable(words):
                run(words, capsys)


def policy(block: Block, folder: Path) -> None:
    """A site's policy: the page shows every setting, each with its default; by default no method's setting is bound."""
    (folder / "policy.toml").write_text(block.text, encoding="utf-8")
    shown = read_policy(folder / "policy.toml")
    assert shown.settings
    assert shown.model_copy(update={"settings": {}}) == Policy()
    assert set(re.findall(r"^(?:# )?(\w+) =", block.text, re.M)) - {"most"} == set(Policy.model_fields) - {"settings"}


def paper_claims(block: Block, _: Path) -> None:
    """Claims of a preset: rows and metrics are those of the table that the page speaks of."""
    preset = ROOT / "src/fedstill/experiment/presets/fedkf/table5.toml"
    content = tomllib.loads(preset.read_text(encoding="utf-8"))
    (claim,) = claims("the page", content | tomllib.loads(block.text))
    assert claim.relation == "better"


def own_parts(block: Block, folder: Path) -> None:
    """Where a package declares its parts: every group is a registry's, which takes the thing. And a site's policy."""
    content = tomllib.loads(block.text)
    if "project" not in content:
        (folder / "policy.toml").write_text(block.text, encoding="utf-8")
        assert read_policy(folder / "policy.toml").code
        return
    save(ROOT / "docs" / "own.md", folder)
    groups = {registry.group: registry for registry in KINDS.values()}
    for group, entries in content["project"]["entry-points"].items():
        for thing in entries.values():
            assert groups[group][thing] is not None, thing


READERS: dict[str, Callable[[Block, Path], None]] = {
    "docs/deploy.md": policy,
    "docs/own.md": own_parts,
    "docs/results.md": paper_claims,
}
"""What reads a page's settings."""


@each_page
def test_every_other_block_is_read_by_what_reads_it_or_is_listed(page: Path, folder: Path) -> None:
    for block in blocks(page):
        if block.language == "toml":
            READERS[name(page)](block, folder)
        elif block.language == "csv":
            assert len({len(row) for row in csv.reader(block.text.splitlines())}) == 1, block.text
        elif block.language not in (*SHELL, "python"):
            assert block.mark == "not run", f"{name(page)}: a block of {block.language!r} that nothing checks"


def test_few_blocks_cannot_be_run_and_each_says_why() -> None:
    listed = [(name(page), block.word) for page in PAGES for block in blocks(page) if block.mark == "not run"]
    assert len(listed) <= 3
    assert all(len(why.split()) >= 3 for _, why in listed)


def test_lines_of_a_shell_are_read_as_bash_reads_them(tmp_path: Path) -> None:
    text = (
        "fedstill ls  # all\nMORE='--seed 3'\n"
        "for s in a b; do fedstill run $s --rounds 2 \\\n  $MORE … > out.txt; done\n"
        "cat > x.toml <<'X'\nrounds = 1\nX\n"
    )
    both = [["fedstill", "run", s, "--rounds", "2", "--seed", "3"] for s in "ab"]
    assert calls(text, tmp_path) == [["fedstill", "ls"], *both]
    assert (tmp_path / "x.toml").read_text() == "rounds = 1\n"


def test_a_block_that_nobody_knows_is_found(tmp_path: Path) -> None:
    """A program that is not one of the known ones, lines that are no shell, and an option that does not exist."""
    for lines in ("rm -rf x", "loss = loss + relational(x)", "age,chol\n50,200"):
        with pytest.raises(AssertionError):
            calls(lines, tmp_path)
    with pytest.raises(click.NoSuchOption):
        parse(COMMANDS, ["run", "fedavg", "--no-such-option", "3"])
    with pytest.raises(AssertionError):
        other(["make", "coffee"])


def test_blocks_are_found_fenced_and_indented_in_lists_too(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n\n    one\n      more\n\n- item\n  wraps\n\n  <!-- given: x -->\n  ```toml\n  two\n  ```\n")
    assert blocks(page) == [Block("", "one\n  more\n", "", ""), Block("toml", "two\n", "given", "x")]
