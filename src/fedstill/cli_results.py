"""Commands for records of runs: `fedstill results` shows, filters, compares, verifies and adds them."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from fedstill.cli_app import Json, app, print_json
from fedstill.cli_reports import Column, Row

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
) -> None:
    """Records of runs: list them (with --where: those that fit), or show, compare, verify and add them."""
    if context.invoked_subcommand is not None:
        return
    from fedstill.report import record_tables

    chosen = record_tables.chosen(folder, where or [])
    if as_json:
        print_json([record_tables.brief(record) for record in chosen])
    else:
        record_tables.show_list(chosen)


@results.command("show")
def show_record(
    id: Annotated[str, typer.Argument(help="A record's id, or how it starts.")],
    folder: Folder = Path("results"),
    as_json: Json = False,
) -> None:
    """Show one record: settings, machine, curves."""
    from fedstill.experiment.archive import Archive
    from fedstill.report import record_tables

    record = Archive(folder).by_id(id)
    print(record.line(), end="") if as_json else record_tables.show_one(record)


@results.command("compare")
def compare_records(where: Where = None, folder: Folder = Path("results"), as_json: Json = False) -> None:
    """Compare records: mean ± spread over seeds, last and best round, as `fedstill compare` does for runs."""
    from fedstill.report import record_tables, tables

    found = [record.result() for record in record_tables.chosen(folder, where or [])]
    rows = tables.comparison(found)
    print_json(rows) if as_json else tables.show(rows, tables.metrics_of(found))


@results.command("table")
def table(
    name: Annotated[str, typer.Argument(help="A preset.")],
    seeds: Annotated[int | None, typer.Option(min=1, help="How many seeds to look for. [as many as pages do]")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="At this round, instead of the preset's last.")] = None,
    full: Annotated[bool, typer.Option("--full", help="The paper's own size.")] = False,
    row: Row = None,
    column: Column = None,
    folder: Folder = Path("results"),
    as_json: Json = False,
) -> None:
    """A paper's table from the records alone, ours beside the paper's, and its claims; nothing is run."""
    from fedstill.experiment.archive import Archive
    from fedstill.experiment.presets import read_preset
    from fedstill.experiment.reproduce import RECORDED_SEEDS
    from fedstill.report import claims as claim_tables
    from fedstill.report import paper_table, result_pages

    preset, archive = read_preset(name), Archive(folder)
    choice = result_pages.Choice(row or (), column or (), rounds, seeds or RECORDED_SEEDS, full)
    numbers = result_pages.table_numbers(preset, archive, choice)
    verdicts = result_pages.judgements(preset, archive, choice)
    if as_json:
        known = {"numbers": [n.plain() for n in numbers], "claims": [verdict.plain() for verdict in verdicts]}
        print_json(known)
    else:
        paper_table.show(numbers, preset.title)
        print("\n".join(claim_tables.lines(verdicts)))


@results.command("pages")
def pages(
    paths: Annotated[list[Path], typer.Argument(help="Pages (.md), or folders of pages.")],
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit 1 where a page is stale.")] = False,
    folder: Folder = Path("results"),
) -> None:
    """Make the tables between `<!-- results … -->` markers anew from the records."""
    from fedstill.experiment.archive import Archive
    from fedstill.report import result_pages

    files = [file for path in paths for file in (sorted(path.rglob("*.md")) if path.is_dir() else [path])]
    archive = Archive(folder)
    changed = result_pages.stale(files, archive) if check else result_pages.write(files, archive)
    for page in changed:
        print(f"{page}: {'does not say what the records say' if check else 'made anew'}")
    if check and changed:
        raise typer.Exit(1)


@results.command("verify")
def verify(
    ids: Annotated[list[str], typer.Argument(help="Records' ids, or how they start.")],
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Only the first rounds: quick, and by scores alone.")
    ] = None,
    folder: Folder = Path("results"),
    as_json: Json = False,
) -> None:
    """Run records again and say whether data, split, scores and weights are the same, bit by bit. Exit 1 if not."""
    from fedstill.core.errors import FedstillError
    from fedstill.experiment.archive import Archive
    from fedstill.experiment.verify import verified
    from fedstill.report import record_tables

    archive = Archive(folder)
    checks: list[dict[str, Any]] = []
    for record in [archive.by_id(id) for id in ids]:  # an unknown one is told before any is run
        try:
            check = verified(record, rounds)
        except FedstillError as error:
            reason = str(error).removeprefix(f"{record.id}: ")
            print(f"fedstill: {record.id}: {reason}", file=sys.stderr)
            checks.append({"id": record.id, "same": None, "error": reason})
            continue
        checks.append(check.plain())
        if not as_json:
            record_tables.show_check(check)
    if as_json:
        print_json(checks)
    if not all(check["same"] for check in checks):
        raise typer.Exit(1)


@results.command("add")
def add(
    paths: Annotated[list[Path], typer.Argument(help="Folders of finished runs.")],
    cell: Annotated[str, typer.Option(help="The cell they stand for: 'fedkf/table5 · FedAvg × α = 0.1'.")] = "",
    folder: Folder = Path("results"),
) -> None:
    """Add runs of your own to the records."""
    from fedstill.experiment.archive import Archive
    from fedstill.experiment.records import record_of

    archive = Archive(folder)
    for path in paths:
        record = record_of(path, cell)
        print(f"{record.id} {record.label} → {archive.add(record)}")


@app.command()
def leaderboard(
    name: Annotated[str, typer.Argument(help="The preset with the tasks.")] = "leaderboard/board",
    out: Annotated[Path, typer.Option("-o", "--out", help="The page.")] = Path("leaderboard.html"),
    tune: Annotated[bool, typer.Option("--tune", help="Print every method's rate, tuned on the first task.")] = False,
    row: Annotated[list[str] | None, typer.Option(help="With --tune: only these rows (* and ? allowed).")] = None,
    folder: Folder = Path("results"),
    as_json: Json = False,
) -> None:
    """Every method, task by task, from the records: ranks, critical difference, bytes and time, on one page."""
    from fedstill.experiment import leaderboard as boards
    from fedstill.experiment.archive import Archive
    from fedstill.experiment.presets import read_preset
    from fedstill.experiment.toml import key
    from fedstill.report import leaderboard as board_page
    from fedstill.report.progress import say

    preset = replace(read_preset(name), name=name)  # commands on the page name a preset of one's own by its path
    if tune:
        rates = boards.tuned(preset, row or (), say)
        print("[tuned]\n" + "\n".join(f"{key(method)} = {rate:g}" for method, rate in rates.items()))
        return
    leagues = boards.leagues(preset, Archive(folder))
    if as_json:
        print_json(board_page.rows(leagues))
    else:
        print(board_page.page(preset, leagues, out))
