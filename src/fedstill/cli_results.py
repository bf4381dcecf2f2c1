"""Commands for records of runs: `fedstill results` shows, filters, compares, verifies and adds them."""

import json
from pathlib import Path
from typing import Annotated

import typer

from fedstill.cli_app import Debug, Json, app

results = typer.Typer()
app.add_typer(results, name="results")

Folder = Annotated[Path, typer.Option("--results", help="The folder of records.")]
Where = Annotated[
    list[str] | None,
    typer.Option("--where", help="name=value, * and ? allowed: method=fedkf, seed=1, alpha=0.1, cell='fedkf/*'."),
]


@results.callback(invoke_without_command=True)
def list_records(
    context: typer.Context,
    where: Where = None,
    folder: Folder = Path("results"),
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Records of runs: list them (with --where: those that fit), or show, compare, verify and add them."""
    if context.invoked_subcommand is not None:
        return
    from fedstill.report import record_tables

    chosen = record_tables.chosen(folder, where or [])
    if as_json:
        print(json.dumps([record_tables.brief(record) for record in chosen], indent=1, ensure_ascii=False))
    else:
        record_tables.show_list(chosen)


@results.command("show")
def show_record(
    id: Annotated[str, typer.Argument(help="A record's id, or how it starts.")],
    folder: Folder = Path("results"),
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show one record: settings, machine, curves."""
    from fedstill.experiment.records import Archive
    from fedstill.report import record_tables

    record = Archive(folder).by_id(id)
    print(record.line(), end="") if as_json else record_tables.show_one(record)


@results.command("compare")
def compare_records(
    where: Where = None, folder: Folder = Path("results"), as_json: Json = False, debug: Debug = False
) -> None:
    """Compare records: mean ± spread over seeds, last and best round, as `fedstill compare` does for runs."""
    from fedstill.report import record_tables, tables

    rows = tables.comparison([record.result() for record in record_tables.chosen(folder, where or [])])
    print(json.dumps(rows, indent=1)) if as_json else tables.show(rows)


@results.command("table")
def table(
    name: Annotated[str, typer.Argument(help="A preset.")],
    seeds: Annotated[int, typer.Option(min=1, help="Seeds to look for (1, 2, …).")] = 3,
    rounds: Annotated[int | None, typer.Option(min=1, help="At this round, instead of the preset's last.")] = None,
    folder: Folder = Path("results"),
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """A paper's table from the records alone, ours beside the paper's; nothing is run."""
    from fedstill.experiment import reproduce as papers
    from fedstill.experiment.presets import read_preset
    from fedstill.experiment.records import Archive
    from fedstill.report import paper_table

    preset = read_preset(name)
    entries, done = papers.recorded(papers.plan(preset, Path("."), seeds=seeds, rounds=rounds), Archive(folder))
    numbers = papers.numbers(entries, done, {})
    if as_json:
        print(json.dumps([number.plain() for number in numbers], indent=1, ensure_ascii=False))
    else:
        paper_table.show(numbers, preset.title)


@results.command("verify")
def verify(
    ids: Annotated[list[str], typer.Argument(help="Records' ids, or how they start.")],
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Only the first rounds: quick, and by scores alone.")
    ] = None,
    folder: Folder = Path("results"),
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Run records again and say whether data, split, scores and weights are the same, bit by bit. Exit 1 if not."""
    from fedstill.experiment.records import Archive
    from fedstill.experiment.verify import verified
    from fedstill.report import record_tables

    archive = Archive(folder)
    checks = [verified(archive.by_id(id), rounds) for id in ids]
    if as_json:
        print(json.dumps([check.plain() for check in checks], indent=1, ensure_ascii=False))
    else:
        for check in checks:
            record_tables.show_check(check)
    if not all(check.same for check in checks):
        raise typer.Exit(1)


@results.command("add")
def add(
    paths: Annotated[list[Path], typer.Argument(help="Folders of finished runs.")],
    cell: Annotated[str, typer.Option(help="The cell they stand for: 'fedkf/table5 · FedAvg × α = 0.1'.")] = "",
    folder: Folder = Path("results"),
    debug: Debug = False,
) -> None:
    """Add runs of your own to the records."""
    from fedstill.experiment.records import Archive, record_of

    archive = Archive(folder)
    for path in paths:
        record = record_of(path, cell)
        print(f"{record.id} {record.label} → {archive.add(record)}")
