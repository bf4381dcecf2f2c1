"""Pages of the site that are made from the code: the index of methods, the commands, the settings and the Python names.

MkDocs calls `on_files` (see `mkdocs.yml`); nothing here is written by hand twice.
"""

from typing import Any

import click
import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

import fedstill
from fedstill.cli import app
from fedstill.report import catalogue


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    pages = {
        "methods/index.md": methods_index(files),
        "reference/commands.md": commands(),
        "reference/settings.md": settings(),
        "reference/python.md": python_names(),
    }
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def methods_index(files: Files) -> str:
    """Every method by what it needs, with its page where there is one."""
    pages = {file.src_uri for file in files}
    rows = []
    for entry in catalogue.listing("methods"):
        card = catalogue.card(entry["name"])
        page = f"{entry['name']}.md"
        title = f"[{entry['name']}]({page})" if f"methods/{page}" in pages else f"`{entry['name']}`"
        rows.append((
            title, card["about"].split("\n")[0], "yes" if card["needs_public_data"] else "no",
            "may differ" if card["different_architectures"] else "one for all",
            ", ".join(dict.fromkeys(card["leaves_client"].values())),
        ))  # fmt: skip
    head = ("method", "idea", "public data", "networks", "what leaves a client")
    return (
        "# Methods\n\nEvery registered method, read from the code. `fedstill show NAME` prints settings and paper.\n\n"
        + table(head, rows)
    )


def commands() -> str:
    """Every command with its words and options, from typer."""
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group)
    parts = ["# Commands\n"]
    for name in sorted(group.commands):
        command = group.commands[name]
        if not command.hidden:
            parts.append(f"## fedstill {name}\n\n{command.help or ''}\n\n{options(command)}")
    return "\n".join(parts)


def options(command: click.Command) -> str:
    """A table of a command's arguments and options."""
    rows = []
    for parameter in command.params:
        if parameter.name in ("help", "debug"):
            continue
        title = ", ".join(parameter.opts) if isinstance(parameter, click.Option) else str(parameter.name).upper()
        rows.append((f"`{title}`", str(parameter.to_info_dict().get("help") or "")))
    return table(("", ""), rows) if rows else ""


def settings() -> str:
    """Every field of the experiment and of everything registered, with default and meaning."""
    parts = ["# Settings\n\nEvery setting, from its field. `--set name=value` gives it on the command line.\n"]
    parts += ["## The experiment\n", fields(catalogue.experiment_settings())]
    for kind in catalogue.KINDS:
        for entry in catalogue.listing(kind):
            card = catalogue.card(entry["name"])
            if card.get("settings"):
                parts += [f"## {kind}: {entry['name']}\n", fields(card["settings"])]
    return "\n".join(parts)


def fields(entries: list[dict[str, Any]]) -> str:
    """A table of settings."""
    return table(
        ("setting", "default", "meaning"), [(f"`{e['name']}`", f"`{short(e['default'])}`", e["about"]) for e in entries]
    )


def short(default: Any) -> str:
    """A default in one word: a part by its name."""
    return str(default["name"]) if isinstance(default, dict) and "name" in default else str(default)


def python_names() -> str:
    """Everything `import fedstill` offers, from its docstrings."""
    parts = ["# Python\n\n```python\nimport fedstill as fs\n```\n"]
    for name in dir(fedstill):
        if name in fedstill.names():
            parts.append(f"::: {fedstill.names()[name]}.{name}\n")
    return "\n".join(parts)


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A Markdown table; bars inside a cell are escaped."""
    lines = [" | ".join(head), " | ".join("---" for _ in head)]
    lines += [" | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) for row in rows]
    return "\n".join(f"| {line} |" for line in lines) + "\n"
