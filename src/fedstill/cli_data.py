"""The command `fedstill data`: a look at data before anything runs."""

from dataclasses import asdict
from typing import Annotated, Any

import typer

from fedstill.cli_app import Json, app, names, print_json
from fedstill.cli_fields import given, of_reading, with_fields


@app.command("data", cls=with_fields(of_reading()))
def look_at_data(
    context: typer.Context,
    data: Annotated[
        str,
        typer.Argument(
            help="A data set, an image folder, a table or an .npz file.", autocompletion=names("data", files=True)
        ),
    ],
    as_json: Json = False,
) -> None:
    """Look at data before it runs: columns, missing values, classes, sites, and what each method would do with them."""
    from fedstill.data import load
    from fedstill.data.look import look
    from fedstill.data.reading import reading_of

    dataset = load(data, reading_of(given(context)))
    seen, plans = look(dataset), _plans(dataset)
    if as_json:
        print_json({**asdict(seen), "methods": plans})
    else:
        _show(seen, plans, dataset.class_names)


def _plans(dataset: Any) -> list[dict[str, str]]:
    """What each method would do with these data, as far as its settings tell."""
    from dataclasses import fields

    import fedstill.methods  # noqa: F401
    from fedstill.core.method import methods
    from fedstill.models import auto

    model, plural, rows = auto(dataset.kind), dataset.kind.plural, []
    for name, known in methods.usable():
        method = known()
        there = {f.name for f in fields(method)}
        does = [f"trains {model}"]
        if method.needs_public:
            does.append("keeps a tenth of every class as the public set (or name one: --public)")
        if "generator" in there:
            does.append(f"imagines {plural} with its generator")
        if not method.federated:
            does.append("puts all data in one place: a yardstick, no federation")
        rows.append({"method": name, "does": "; ".join(does)})
    return rows


def _show(seen: Any, plans: list[dict[str, str]], class_names: tuple[str, ...]) -> None:
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    console = Console()
    for name, value in seen.facts.items():
        console.print(f"{name:<8} {value}", highlight=False, markup=False)
    alike: dict[str, list[str]] = {}
    for plan in plans:
        alike.setdefault(plan["does"], []).append(plan["method"])
    methods = [{"methods": ", ".join(those), "each": does} for does, those in alike.items()]
    for title, rows in ((f"columns ({len(seen.columns)})", seen.columns), (f"sites ({len(seen.sites)})", seen.sites),
                        (f"methods ({len(plans)})", methods)):  # fmt: skip
        if not rows:
            continue
        grid = Grid(title=title, title_justify="left")
        for name in rows[0]:
            grid.add_column(name)
        for row in rows:
            shown = {**row, "missing": f"{row['missing']:.1%}"} if "missing" in row else dict(row)
            if "classes" in shown:
                counted = zip(class_names, row["classes"], strict=True)
                shown["classes"] = ", ".join(f"{n} {c}" for n, c in counted if c)
            grid.add_row(*(Text(str(value)) for value in shown.values()))
        console.print(grid)
    for line in seen.warnings:
        console.print(f"note: {line}", highlight=False, markup=False)
