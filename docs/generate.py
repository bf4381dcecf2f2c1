"""Pages of the site that are made from the code: the index of methods, commands, settings, Python names.

MkDocs calls the functions named `on_…` (see `mkdocs.yml`); nothing here is written by hand twice.
"""

import re
from pathlib import Path
from typing import Any

import click
import notebooks
import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from typer.core import TyperArgument, TyperOption

import fedstill
from fedstill.cli import app
from fedstill.core.method import Method, methods
from fedstill.experiment.config import Experiment
from fedstill.report import advise, catalogue

METHODS, TUTORIALS, OTHERS = "Methods", "Tutorials", "How-to"
"""The sections of `mkdocs.yml` that methods' pages, the examples, and pages that it does not name are added to."""

NUMBERS = {
    "measures": "What a model's answers are scored by: `--metric NAME` chooses what AMP, FM and WLP are made of.",
    "metrics": "What every run reports of its models; `--set metrics=package.module:NAME` adds your own.",
    "table-metrics": "What a preset's tables may show besides; a name that ends in a colon is followed by a goal.",
}
"""What is listed under the settings without having any."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put every method's page, and pages that nobody named, into their sections."""
    assert config.nav is not None
    named = str(config.nav)
    others = [page.name for page in sorted(Path(config.docs_dir).glob("*.md")) if f"'{page.name}'" not in named]
    for section in config.nav:
        if METHODS in section:
            section[METHODS].append({"By name": [{name: page_of(name)} for name in methods]})
        if TUTORIALS in section:
            section[TUTORIALS] += [f"tutorials/{script.stem}.md" for script in scripts()]
        if OTHERS in section:
            section[OTHERS] += others
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, and a page for each method that has none written by hand."""
    pages = {
        "methods/index.md": methods_index(),
        "reference/commands.md": commands(),
        "reference/settings.md": settings(),
        "reference/python.md": python_names(),
    }
    for script in scripts():
        note = f"The notebook: [{script.stem}.ipynb]({script.stem}.ipynb); the script: `examples/{script.name}`.\n"
        pages[f"tutorials/{script.stem}.md"] = notebooks.markdown(script.read_text(encoding="utf-8")) + f"\n{note}"
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    for name in methods:
        if files.get_file_from_path(page_of(name)) is None:
            files.append(File.generated(config, page_of(name), content=f"# {name}\n\n{about(methods[name])}\n"))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put under every method's page what the code says of it, and answers under that on advice; set lists apart.

    Where the source links to a notebook, which a reader of the repository can open, the site has the page.
    """
    markdown = lists_apart(markdown)
    if page.file.src_uri not in (f"tutorials/{script.stem}.md" for script in scripts()):
        markdown = markdown.replace(".ipynb)", ".md)")
    if page.file.src_uri == "advise.md":
        return f"{markdown}\n\n{answers(Path(config.docs_dir).parent / 'results')}"
    name = page.file.src_uri.removeprefix("methods/").removesuffix(".md")
    return f"{markdown}\n\n{facts(name)}" if page.file.src_uri == page_of(name) and name in methods else markdown


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Refuse a page that would load anything over the network: the site is to be read without one."""
    loaded = re.search(r"""<(?:script|link|img|iframe)[^>]+(?:src|href)=["']?https?:[^"' >]+""", output)
    if loaded:
        raise PluginError(f"{page.file.src_uri}: loads something over the network: {loaded.group()}")
    return output


def lists_apart(markdown: str) -> str:
    """The text with an empty line before every list that follows a paragraph, which MkDocs needs and GitHub does not.

    >>> lists_apart("Choices\\n1. one\\n2. two").splitlines()
    ['Choices', '', '1. one', '2. two']
    """
    lines: list[str] = []
    fenced = inside = apart = False
    for line in markdown.split("\n"):
        before = lines[-1] if lines else ""
        if not fenced:
            begins = re.match(r"(\d+\.|[-*]) ", line)
            follows = re.match(r"(1\.|[-*]) ", line) and before and not re.match(r"(\d+\.|[-*]) |\s", before)
            if follows or (begins and before.startswith(" ") and apart):  # after a paragraph of the item before
                lines.append("")
            apart = not begins and (apart or not line)
            inside = bool(begins) or (inside and (not line or line.startswith(" ")))
            if inside and not begins:
                line = deeper(line, lines)
        fenced ^= line.startswith("```")
        lines.append(line)
    return "\n".join(lines)


def deeper(line: str, before: list[str]) -> str:
    """A line inside a list, indented by four for each level as MkDocs needs it; a list inside one is set apart.

    >>> deeper("  - inner", ["- outer", ""]), deeper("   more", ["1. one"])
    ('    - inner', '    more')
    """
    space = len(line) - len(line.lstrip(" "))
    if not line.strip() or space not in (2, 3, 4, 5):
        return line
    nested = re.match(r"\s+([-*]|\d+\.) ", line) is not None
    if nested and before[-1] and not re.match(r"\s+([-*]|\d+\.) ", before[-1]):
        before.append("")
    inner = any(re.match(r"    ([-*]|\d+\.) ", known) for known in before[-6:]) and space >= 4
    return " " * (8 if inner and not nested else 4) + line.lstrip(" ")


def scripts() -> list[Path]:
    """The examples, in the order of their names."""
    return sorted(notebooks.EXAMPLES.glob("*.py"))


def page_of(name: str) -> str:
    """Where a method's page stands."""
    return f"methods/{name}.md"


def about(method: type[Method[Any, Any, Any, Any]]) -> str:
    """A method's first line."""
    return (method.__doc__ or "").split("\n")[0]


def methods_index() -> str:
    """Every method, grouped by what it needs: public data or not, one network or not."""
    parts = [
        "# Methods\n\nEvery registered method by what it needs, read from the code. "
        "`fedstill show NAME` prints settings and paper; [which one?](../advise.md) helps to choose.\n"
    ]
    groups: dict[str, list[tuple[str, ...]]] = {}
    for name in methods:
        method = methods[name]
        public = "With public data" if method.needs_public else "Without public data"
        networks = "one network for all" if method.one_architecture else "networks may differ"
        leaves = ", ".join(dict.fromkeys(method.leaves_client().values())) or "nothing"
        row = (f"[{name}]({name}.md)", about(method), leaves)
        groups.setdefault(f"{public}, {networks}", []).append(row)
    for title in sorted(groups, reverse=True):
        parts.append(f"## {title}\n\n" + table(("method", "idea", "what leaves a client"), groups[title]))
    return "\n".join(parts)


def facts(name: str) -> str:
    """What leaves a client with a method, what it needs, and its settings."""
    card = catalogue.card(name)
    needs = "needs public data" if card["needs_public_data"] else "needs no public data"
    networks = "networks may differ" if card["different_architectures"] else "one network for all"
    leaves = [(f"`{field}`", what) for field, what in card["leaves_client"].items()]
    parts = [f"## From the code\n\n`fedstill run {name}`: {needs}; {networks}."]
    if leaves:
        parts.append(table(("leaves a client", "what it carries"), leaves))
    if card.get("settings"):
        parts.append(fields(card["settings"]))
    return "\n\n".join(parts)


def answers(results: Path) -> str:
    """What `fedstill advise` says today, from these records, where it is asked as the page asks first."""
    parts = [
        "## What it says today\n\nTo `fedstill advise --alpha 0.1 --active 0.2`, from the records of this version:"
    ]
    for one in advise.advise(advise.Situation(alpha=0.1, active=0.2), results):
        leaves = ", ".join(dict.fromkeys(one.leaves.values()))
        why = [f"- {line}" for line in (*one.why, f"leaves a client: {leaves}", f"cost: {one.cost}", one.evidence)]
        parts.append(f"**[{one.method}]({page_of(one.method)})**\n\n" + "\n".join(why))
    return "\n\n".join(parts)


def commands() -> str:
    """Every command with its words and options, from typer."""
    parts = [
        "# Commands\n\nFrom the command line's own help: `fedstill COMMAND --help`. Most people need seven: `data`, "
        "`advise`, `run`, `resume`, `compare`, `report` and `predict`. `hub`, `site`, `keys` and `deploy` train across "
        "real sites; `reproduce`, `results` and `leaderboard` are about papers and records.\n"
    ]
    parts += described("fedstill", typer.main.get_command(app))
    return "\n".join(parts)


def described(name: str, command: click.Command) -> list[str]:
    """A command and those below it."""
    parts = []
    if name != "fedstill":
        parts.append(f"## {name}\n\n{command.help or ''}\n\n{options(command)}")
    for inner in sorted(command.commands) if isinstance(command, click.Group) else ():
        if not command.commands[inner].hidden:
            parts += described(f"{name} {inner}", command.commands[inner])
    return parts


def options(command: click.Command) -> str:
    """A table of a command's arguments and options."""
    rows = []
    for parameter in command.get_params(click.Context(command)):
        if parameter.name == "help":
            continue
        option = isinstance(parameter, click.Option)
        title = ", ".join(parameter.opts) if option else str(parameter.name).upper()
        told = parameter.help if isinstance(parameter, TyperOption | TyperArgument | click.Option) else ""
        rows.append((f"`{title}`", told or ""))
    return table(("word or option", "meaning"), rows) if rows else ""


def settings() -> str:
    """Every field of the experiment and of everything registered, with default and meaning."""
    parts = [
        "# Settings\n\nEvery setting, from its field. `--set name=value` gives it on the command line; in a file "
        "it is a line, or one of its part's table. Those of methods stand on [their pages](../methods/index.md).\n",
        "## The experiment\n",
        fields(catalogue.settings_of(Experiment)),
    ]
    for kind in sorted(set(catalogue.KINDS) - {"methods"}):
        for entry in catalogue.listing(kind):
            found = catalogue.card(entry["name"]).get("settings")
            if found:
                parts += [f"## {kind}: {entry['name']}\n", entry["about"] + "\n", fields(found)]
    for kind, use in NUMBERS.items():
        rows = [(f"`{entry['name']}`", entry["about"]) for entry in catalogue.listing(kind)]
        parts += [f"## {kind}\n", use + "\n", table(("name", "meaning"), rows)]
    return "\n".join(parts)


def fields(entries: list[dict[str, Any]]) -> str:
    """A table of settings."""
    rows = [(f"`{e['name']}`", f"`{short(e['default'])}`", e["about"]) for e in entries]
    return table(("setting", "default", "meaning"), rows)


def short(default: Any) -> str:
    """A default in one word: a part by its name."""
    return str(default["name"]) if isinstance(default, dict) and "name" in default else str(default)


def python_names() -> str:
    """Everything `import fedstill` offers, from its docstrings."""
    homes = fedstill.names()
    values = [name for name in sorted(homes) if homes[name] == "fedstill.methods"]
    parts = [
        "# Python\n\n```python\nimport fedstill as fs\n```\n\nFirst what runs and reads experiments, then data, then "
        "what a method of your own is made of. The fields of `fs.Experiment` and of the gathers are listed as "
        "[settings](settings.md).\n"
    ]
    for name in homes:
        if name not in values:
            parts.append(f"::: {homes[name]}.{name}\n    options: {{ heading: fs.{name}, toc_label: fs.{name} }}\n")
    parts.append("## Methods\n\nEach is a class whose fields are its settings: see [its page](../methods/index.md).\n")
    parts += [f"- `fs.{name}`: {about(getattr(fedstill, name))}" for name in values]
    return "\n".join(parts)


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A Markdown table; bars inside a cell are escaped."""
    lines = [" | ".join(head), " | ".join("---" for _ in head)]
    lines += [" | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) for row in rows]
    return "\n".join(f"| {line} |" for line in lines) + "\n"
