"""Every block of code in the pages: Python runs, and every `fedstill …` line is one that the command line takes.

A comment in front of a block, which readers of the page do not see, says what a block cannot say itself:
`<!-- given: CODE -->` is run before it; `<!-- not run: WHY -->` names the few that cannot be run.

Commands are run where that takes no time (`QUICK`). Others would train for minutes or hours, or need files of the
reader's own: they are read as the command line reads them, and the experiment they ask for is built with all settings.
"""

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
import typer

from fedstill.cli import app, main
from fedstill.cli_app import apply_settings
from fedstill.core.errors import FedstillError
from fedstill.data.reading import SHORT
from fedstill.experiment.config import experiment, options
from fedstill.report.catalogue import methods

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page for folder in ("", "docs", "docs/methods", "docs/tutorials") for page in (ROOT / folder).glob("*.md")
)
QUICK = ("ls", "show", "advise")
"""Commands on the pages that are run as they stand."""
LANGUAGES = {"", "sh", "bash", "shell", "python", "toml", "csv", "text"}
"""A block in another language would be checked by nobody."""
INDENTED = re.compile(r"(?:^    \S.*\n)+", re.M)
FENCE = re.compile(r"(?:<!-- (given|not run): (.*?) -->\n)?^```(\w*)\n(.*?)^```", re.S | re.M)


class Block(NamedTuple):
    """A block of code: its language, its text, and what the comment in front of it says."""

    language: str
    text: str
    mark: str
    word: str


def blocks(page: Path) -> list[Block]:
    found = FENCE.findall(page.read_text(encoding="utf-8"))
    return [Block(language, text, mark, word) for mark, word, language, text in found]


def shell(page: Path) -> str:
    """Everything on a page that a reader may type: fenced blocks without a language, and indented ones."""
    text = page.read_text(encoding="utf-8")
    fenced = [block.text for block in blocks(page) if block.language in ("", "sh", "bash", "shell")]
    return "\n".join(
        [*fenced, *(re.sub(r"^    ", "", found, flags=re.M) for found in INDENTED.findall(FENCE.sub("", text)))]
    )


def commands(text: str) -> list[list[str]]:
    """The `fedstill` commands in lines of a shell, as words; what stands for something else (…) is left out."""
    found = []
    for line in re.sub(r"\\\n", " ", text).splitlines():
        for part in re.split(r";|&&|\|\s|\s&(?:\s|$)|\bdo\b", re.sub(r"(^|\s)#.*", "", line)):
            words = shlex.split(re.sub(r"\s>\s*\S+", " ", part)) if part.strip().startswith("fedstill ") else []
            if words and "…" not in words:
                found.append(words[1:])
    return found


def parse(command: click.Command, words: list[str], parent: click.Context | None = None) -> click.Context:
    """Read the words as the command line would, without doing anything; wrong ones are an error."""
    context = command.make_context(command.name or "fedstill", list(words), parent=parent)
    if not isinstance(command, click.Group):
        return context
    rest = [*context._protected_args, *context.args]
    if not rest:
        return context
    _, inner, after = command.resolve_command(context, rest)
    assert inner is not None
    return parse(inner, after, context)


def test_commands_are_found_in_lines_of_a_shell() -> None:
    text = (
        "fedstill ls  # all\nmake x\nfor s in a b; do fedstill run fedkf --rounds 2 \\\n  --seed $s > out.txt & done\n"
    )
    assert commands(text) == [["ls"], ["run", "fedkf", "--rounds", "2", "--seed", "$s"]]


def test_an_option_that_does_not_exist_is_found() -> None:
    with pytest.raises(click.NoSuchOption):
        parse(typer.main.get_command(app), ["run", "fedavg", "--no-such-option", "3"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_on_a_page_is_one_that_there_is(page: Path) -> None:
    group = typer.main.get_command(app)
    for words in commands(shell(page)):
        shown = f"fedstill {shlex.join(words)}"
        try:
            # a number that the shell puts in place of $seed is a number; $COMMON stands for more options
            context = parse(group, [re.sub(r"^\$[a-z]\w*$", "1", w) for w in words if not re.match(r"\$[A-Z]", w)])
        except click.ClickException as error:
            pytest.fail(f"{shown}: {error.format_message()}")
        if words[0] == "run" and not words[1].endswith((".toml", ".json")) and not words[1].isupper():
            assert words[1] in methods, shown
            planned(words[1], context.params, shown)


def planned(method: str, params: dict[str, Any], shown: str) -> None:
    """Build the experiment that a command asks for, but for the reader's own data."""
    plan: dict[str, Any] = {"method": {"name": method}}
    own = {"data", "public", *SHORT}
    wanted = {name: params[name] for name in options() if name not in own and params.get(name) not in (None, ())}
    plan |= {name: ",".join(value) if isinstance(value, tuple) else value for name, value in wanted.items()}
    apply_settings(plan, [pair for pair in params["settings"] or [] if not pair.startswith("reading.")])
    try:
        experiment(plan)
    except FedstillError as error:
        pytest.fail(f"{shown}: {error}")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_that_take_no_time_are_run(
    page: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    for words in commands(shell(page)):
        if words[0] in QUICK and "runs" not in words and not any(word.isupper() for word in words):
            with pytest.raises(SystemExit) as left:
                main(words)
            assert not left.value.code, f"fedstill {shlex.join(words)}: {capsys.readouterr().err}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_is_of_a_language_that_is_checked_and_settings_can_be_read(page: Path) -> None:
    for block in blocks(page):
        assert block.language in LANGUAGES, block.text
        if block.language == "toml":
            tomllib.loads(block.text)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(b.language == "python" for b in blocks(page))], ids=lambda p: p.stem
)
def test_every_block_of_python_on_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    for block in blocks(page):
        if block.language == "python" and block.mark != "not run":
            exec(compile(f"{block.word}\n{block.text}", str(page), "exec"), names)


def test_few_blocks_cannot_be_run_and_each_says_why() -> None:
    told = [(page.stem, block.word) for page in PAGES for block in blocks(page) if block.mark == "not run"]
    assert len(told) <= 3
    assert all(len(why.split()) >= 3 for _, why in told)
