"""The pages and their blocks of code; what lines of a shell call, as bash reads them; what the command line takes."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import click
from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page for folder in ("", "docs", "docs/methods", "docs/tutorials") for page in (ROOT / folder).glob("*.md")
)
SHELL = ("", "sh", "bash", "shell", "console")
"""Languages of blocks that a reader types into a shell; a block without a language is one of them."""
PROGRAMS = ("fedstill", "make", "pip", "python", "source", "flower-supernode")
"""What the pages' lines may call; bash itself does the rest (loops, variables, files written with cat)."""
MARK = re.compile(r"<!-- (given|not run): (.*?) -->\s*", re.S)


class Block(NamedTuple):
    """A block of code: its language, its text, and what the comment in front of it says."""

    language: str
    text: str
    mark: str
    word: str

    @property
    def lines(self) -> str:
        """What is run of it: with what is given first, and nothing where it is not run."""
        return {"not run": "", "given": f"{self.word}\n{self.text}"}.get(self.mark, self.text)


def name(page: Path) -> str:
    """A page's path in the project."""
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    """Every block of code on a page, fenced or indented, at any depth, as Markdown has it."""
    tokens = MarkdownIt("commonmark").parse(page.read_text(encoding="utf-8"))
    found = []
    for before, token in zip([None, *tokens], tokens, strict=False):
        if token.type in ("fence", "code_block"):
            mark = MARK.fullmatch(before.content) if before is not None and before.type == "html_block" else None
            found.append(Block(token.info.strip(), token.content, *(mark.groups() if mark else ("", ""))))
    return found


def calls(lines: str, folder: Path) -> list[list[str]]:
    """The programs that lines of a shell call, with their words as bash expands them; none of them is started.

    `…` stands for more of the same and is left out. The last word of `python` is the text it is given to read. A
    program that is not one of `PROGRAMS` is an error, as is what bash cannot read.
    """
    tools, log = folder / ".tools", folder / ".calls"
    tools.mkdir(exist_ok=True)
    if not (tools / "cat").exists():
        (tools / "cat").symlink_to(shutil.which("cat") or "/bin/cat")
    told = r"""_told() { printf '%s\037' "$@" $'\036' >> "$CALLS"; }"""  # one write: calls behind & do not mix
    known = [f'{program}() {{ _told {program} "$@"; }}' for program in PROGRAMS if program != "python"]
    script = "\n".join([told, *known, 'python() { _told python "$@" "$(cat)"; }', lines, "wait"])
    log.write_bytes(b"")
    environment = {**os.environ, "PATH": str(tools), "CALLS": str(log)}
    bash = shutil.which("bash") or "/bin/bash"
    done = subprocess.run(
        [bash, "-ec", script], cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert not done.returncode, f"{lines}\n{done.stderr}"
    entries = log.read_text(encoding="utf-8").split("\x1e\x1f")[:-1]
    return [[word for word in entry.split("\x1f")[:-1] if word != "…"] for entry in entries]


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
