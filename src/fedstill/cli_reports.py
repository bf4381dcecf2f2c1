"""Commands for what people look at: `report`, `reproduce`, `sweep`, `watch`. They join the app."""

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedstill.cli_app import Json, Tag, app, apply_settings, choices, names, print_json, read_plan, write_json
from fedstill.cli_fields import given, of_experiment, with_fields

if TYPE_CHECKING:
    from fedstill.experiment.claims import Claim
    from fedstill.experiment.presets import Preset
    from fedstill.experiment.reproduce import Entry

Seeds = Annotated[int, typer.Option(min=1, help="How many seeds (1, 2, …).")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Runs at once. [one per core]")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would run, and about how long.")]
Row = Annotated[list[str] | None, typer.Option(help="Only rows with this label (* and ? allowed).")]
Column = Annotated[list[str] | None, typer.Option(help="Only columns with this label (* and ? allowed).")]
Settings = Annotated[list[str] | None, typer.Option("--set", help="name=value: a setting of all runs.")]


@app.command()
def report(
    paths: Annotated[list[Path], typer.Argument(help="Run folders, or folders of runs.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="The page.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="Its title.")] = None,
    tag: Tag = None,
) -> None:
    """Write one page that compares runs; it opens offline, on a phone too."""
    from fedstill.report import html

    for note in html.report(paths, out, title, tag or ()):
        print(f"note: {note}", file=sys.stderr)
    print(out)


@app.command()
def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A preset (see `fedstill ls presets`), or a preset.toml of your own.", autocompletion=names("presets")
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every preset: run what has no record yet.")] = False,
    budget: Annotated[str, typer.Option(help="With --all: for how long, like 2h or 90m.")] = "1h",
    results: Annotated[Path, typer.Option(help="With --all: where records go.")] = Path("results"),
    seeds: Annotated[int | None, typer.Option(min=1, help="How many seeds. [1, with --full 3]")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds, instead of the preset's.")] = None,
    full: Annotated[bool, typer.Option("--full", help="The paper's own size.")] = False,
    row: Row = None,
    column: Column = None,
    settings: Settings = None,
    out: Annotated[Path, typer.Option(help="Where runs and the page go.")] = Path("runs"),
    jobs: Jobs = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Run every cell of a paper's table; print ours beside the paper's. Finished cells are not run again."""
    from fedstill.core.errors import UsageError
    from fedstill.experiment import batch
    from fedstill.experiment import reproduce as papers
    from fedstill.experiment.claims import claims, narrowed
    from fedstill.experiment.presets import read_preset
    from fedstill.report import paper_table
    from fedstill.report.progress import say, teller

    if every == (name is not None):
        raise UsageError("reproduce: give a preset's name, or --all")
    if name is None:
        if seeds or rounds or full or row or column or settings or as_json:
            raise UsageError("reproduce --all: takes --budget, --results, --out, --jobs and --dry-run, nothing else")
        _queue(out, results, budget, jobs, dry_run)
        return
    preset = read_preset(name)
    wanted = narrowed(claims(preset.name, preset.content), row or (), column or ())
    override: dict[str, Any] = {"method": {}}
    apply_settings(override, settings or [])
    room = out / preset.name
    entries = papers.plan(
        preset,
        room,
        seeds=seeds or (3 if full else 1),
        rounds=rounds,
        full=full,
        override=override,
        rows=row or (),
        columns=column or (),
    )
    if preset.kind == "partition" and not dry_run:
        print(paper_table.partitions(preset, entries, room))
        return
    say(f"{preset.title}: {len(entries)} cells, {len({j.path for e in entries for j in e.jobs})} runs")
    at_once = 1 if preset.kind == "times" and jobs is None else jobs  # side by side they would slow each other
    if dry_run:
        _forecast(entries, at_once)
        return
    failed = batch.carry_out(entries, room, at_once, teller())
    if preset.kind == "images" and not failed:
        print(paper_table.mean_images(preset, entries, room))
        return
    _outcome(preset, entries, room, failed, wanted, as_json)
    if failed:
        raise typer.Exit(1)


def _forecast(entries: Sequence["Entry"], at_once: int | None) -> None:
    """Cells that cannot run and why, then what would run and about how long it takes."""
    from fedstill.report.progress import forecast

    for entry in entries:
        if entry.why_not:
            print(f"{entry.cell.row} × {entry.cell.column}: {entry.why_not}")
    cells = [(f"{e.cell.row} × {e.cell.column}", e.jobs) for e in entries if e.jobs]
    print("\n".join(forecast(cells, at_once)))


def _outcome(
    preset: "Preset",
    entries: Sequence["Entry"],
    room: Path,
    failed: Mapping[Path, str],
    wanted: Sequence["Claim"],
    as_json: bool,
) -> None:
    """The table beside the paper's, its claims with their verdicts, and both as `table.json` and as a page."""
    from fedstill.experiment import batch
    from fedstill.experiment import reproduce as papers
    from fedstill.experiment.judging import judged
    from fedstill.report import claims as claim_tables
    from fedstill.report import paper_table
    from fedstill.report.progress import say

    done = batch.results(entries)
    numbers = papers.numbers(entries, done, failed)
    differ = paper_table.differences(preset, entries)
    cells_with_settings = [{**n.plain(), "set_otherwise": list(differ.get((n.row, n.column), ()))} for n in numbers]
    verdicts = judged(wanted, numbers)
    known = {"numbers": cells_with_settings, "claims": [verdict.plain() for verdict in verdicts]}
    write_json(known, room / "table.json")
    if as_json:
        print_json(known)
    elif numbers:
        paper_table.show(numbers, preset.title, differ)
        print("\n".join(claim_tables.lines(verdicts)))
    page = paper_table.page(preset, entries, done, numbers, failed, room, _typed(), claim_tables.section(verdicts))
    say(f"page: {page}" if page else "no run came to its end: no page")


def _queue(out: Path, results: Path, budget: str, jobs: int | None, dry_run: bool) -> None:
    """Run what no record answers, most telling cells first."""
    from fedstill.experiment import queue
    from fedstill.experiment.archive import Archive
    from fedstill.report.progress import say, teller

    room, archive = out / "all", Archive(results)
    spend = queue.seconds(budget)
    waiting = list(queue.wanted(queue.turns(), archive, room))
    say(f"{len(archive.records)} records in {results}, {len(waiting)} runs without one")
    if dry_run:
        for one in waiting:
            print(f"{one.cell}, seed {one.job.plan.seed}, {one.job.plan.rounds} rounds")
        return
    say(f"runs go to {room} (fedstill watch {room})")
    failed = queue.carry_on(waiting, archive, room, budget=spend, at_once=jobs, tell=teller())
    say(f"{len(archive.records)} records in {results}")
    for path, reason in failed.items():
        say(f"{path}: {reason}")
    if failed:
        raise typer.Exit(1)


@app.command(cls=with_fields(of_experiment(but=("seed",))))
def sweep(
    context: typer.Context,
    what: Annotated[
        str,
        typer.Argument(help="A method's name or an experiment.toml.", autocompletion=names("methods", files=True)),
    ],
    grid: Annotated[
        list[str] | None,
        typer.Option(help="name=a,b,c: what to vary; several make a grid. With --search also name=low..high."),
    ] = None,
    search: Annotated[
        str | None,
        typer.Option(help="optuna: try what it proposes instead of every point.", autocompletion=choices("optuna")),
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="With --search: points that are tried.")] = 20,
    seeds: Seeds = 1,
    settings: Settings = None,
    out: Annotated[Path, typer.Option(help="Where runs and the page go.")] = Path("runs/sweep"),
    jobs: Jobs = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Run a method over a grid of settings, or search it, and compare. Finished points are not run again."""
    from fedstill.core.errors import UsageError
    from fedstill.experiment import batch
    from fedstill.experiment import sweep as sweeps
    from fedstill.report import grid as grids
    from fedstill.report.progress import forecast, say, teller
    from fedstill.report.tables import metrics_of, show

    base = read_plan(what)
    base.update(given(context))
    if any(pair.partition("=")[0] == "seed" for pair in settings or []):
        raise UsageError("--set seed: every point has the same seeds; say how many with --seeds")
    apply_settings(base, settings or [])
    if search is not None:
        if search != "optuna":
            raise typer.BadParameter(f"{search!r}: must be optuna", param_hint="--search")
        _search(base, grid or [], trials, seeds, out, jobs, dry_run, as_json)
        return
    varied = sweeps.axes(grid or [])
    points = sweeps.points([(v, _with(base, v)) for v in sweeps.combinations(varied)], range(1, seeds + 1), out)
    say(f"{len(points)} points, {sum(len(point.jobs) for point in points)} runs")
    if dry_run:
        print("\n".join(forecast([(point.label, point.jobs) for point in points], jobs)))
        return
    failed = batch.carry_out(points, out, jobs, teller())
    done = batch.results(points)
    rows = grids.rows(points, done)
    if as_json:
        print_json(rows)
    elif rows:
        show(rows, metrics_of(done.values()))
    lead = ("Grid", grids.section(points, varied, done))
    page = grids.page(points, done, failed, out, _typed(), f"Sweep over {', '.join(varied)}", lead)
    say(f"page: {page}" if page else "no run came to its end: no page")
    if failed:
        raise typer.Exit(1)


def _search(
    base: Mapping[str, Any],
    grid: list[str],
    trials: int,
    seeds: int,
    out: Path,
    jobs: int | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Try what Optuna proposes; then run the best and the settings as given with the seeds that are reported."""
    from fedstill.core.errors import UsageError
    from fedstill.experiment import batch, sweep
    from fedstill.experiment import search as searches
    from fedstill.report import grid as grids
    from fedstill.report import search as trial_tables
    from fedstill.report.progress import forecast, say, teller
    from fedstill.report.tables import metrics_of, show

    if seeds >= searches.TUNING_SEED:
        raise UsageError(f"seeds = {seeds}: must be < {searches.TUNING_SEED}; from there on they are used to search")
    space, room = searches.space(grid), out / "trials"
    if dry_run:
        begin = searches.first(space, lambda values: _with(base, values), room)[:trials]
        print("\n".join(forecast([(point.label, point.jobs) for point in begin], jobs)))
        print(f"the first of {trials} trials; then {2 * seeds} runs with the seeds that are reported")
        return
    tell = teller()
    tried = searches.search(
        space,
        lambda values: _with(base, values),
        room,
        trials,
        run=lambda points: batch.carry_out(points, room, jobs, tell),
    )
    values = searches.best(tried).point.values
    say(f"best of {trials} trials: {searches.best(tried).point.label}")
    plans = [({}, _with(base, {})), (values, _with(base, values))]
    points = sweep.points(plans, range(1, seeds + 1), out)
    failed = batch.carry_out(points, out, jobs, tell)
    done = batch.results(points)
    rows = grids.rows(points, done)
    known = {"best": dict(values), "trials": [trial.plain() for trial in tried], "rows": rows}
    write_json(known, out / "search.json")
    trial_tables.write_best(tried, plans[1][1], out / "best.toml")
    if as_json:
        print_json(known)
    elif rows:
        show(rows, metrics_of(done.values()))
    if done:
        lead = ("Search", trial_tables.section(tried, next(iter(done.values())).metric("amp")))
        page = grids.page(points, done, failed, out, _typed(), f"Search over {', '.join(space)}", lead)
        say(f"page: {page}")
    say(f"fedstill run {out / 'best.toml'}")
    if failed:
        raise typer.Exit(1)


def _with(base: Mapping[str, Any], values: Mapping[str, str]) -> dict[str, Any]:
    """The plan with a point's values; `alpha` is the partition's, as in `fedstill run`."""
    plan = json.loads(json.dumps(base))
    first = sorted(values.items(), key=lambda item: item[0] != "method")  # then what is said of the method
    apply_settings(plan, [f"{name}={value}" for name, value in first if name != "alpha"])
    return {**plan, **({"alpha": values["alpha"]} if "alpha" in values else {})}


def _typed() -> str:
    return shlex.join(["fedstill", *sys.argv[1:]])


@app.command()
def watch(
    path: Annotated[Path, typer.Argument(help="A run's folder, or a folder of runs.")] = Path("runs"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on localhost (0: any free one).")] = 8765,
) -> None:
    """Show runs in progress on a live page on this machine; it reads their folders and nothing else."""
    from fedstill.report.watch import serve

    serve(path, port, lambda address: print(f"watching {path} at {address} (Ctrl-C ends it)", flush=True))
