"""Commands for what people look at: `report`, `reproduce`, `sweep`, `watch`. Registered on the app of `fedstill.cli`."""

import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedstill.cli import Debug, Json, app, apply_settings

if TYPE_CHECKING:
    from fedstill.experiment.batch import News
    from fedstill.experiment.presets import Preset
    from fedstill.experiment.reproduce import Entry

Seeds = Annotated[int, typer.Option(min=1, help="How many seeds (1, 2, …).")]
Jobs = Annotated[int | None, typer.Option(min=1, help="Runs at once. [one per core]")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would run, and about how long.")]
Settings = Annotated[list[str] | None, typer.Option("--set", help="name=value: a setting of all runs.")]


@app.command()
def report(
    paths: Annotated[list[Path], typer.Argument(help="Run folders, or folders of runs.")],
    out: Annotated[Path, typer.Option("-o", "--out", help="The page.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="Its title.")] = None,
    debug: Debug = False,
) -> None:
    """Write one page that compares runs; it opens offline, on a phone too."""
    from fedstill.report import html

    for note in html.report(paths, out, title):
        print(f"note: {note}", file=sys.stderr)
    print(out)


@app.command()
def reproduce(
    name: Annotated[str, typer.Argument(help="A preset (see `fedstill ls presets`), or a preset.toml of your own.")],
    seeds: Seeds = 1,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds, instead of the preset's.")] = None,
    full: Annotated[bool, typer.Option("--full", help="The paper's own size.")] = False,
    row: Annotated[list[str] | None, typer.Option(help="Only rows with this label (* and ? allowed).")] = None,
    column: Annotated[list[str] | None, typer.Option(help="Only columns with this label (* and ? allowed).")] = None,
    settings: Settings = None,
    out: Annotated[Path, typer.Option(help="Where runs and the page go.")] = Path("runs"),
    jobs: Jobs = None,
    dry_run: DryRun = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Run every cell of a paper's table; print ours beside the paper's. Finished cells are not run again."""
    from fedstill.experiment import reproduce as tables
    from fedstill.experiment.presets import read_preset

    preset = read_preset(name)
    override: dict[str, Any] = {"method": {}}
    apply_settings(override, settings or [])
    room = out / preset.name
    entries = tables.plan(preset, room, seeds=seeds, rounds=rounds, full=full, override=override, rows=row or (), columns=column or ())
    _say(f"{preset.title}: {len(entries)} cells, {len({j.path for e in entries for j in e.jobs})} runs")
    if preset.kind in tables.SPECIAL:
        raise typer.Exit(_not_automated(preset.name, tables.SPECIAL[preset.kind]))
    at_once = 1 if preset.kind == "times" and jobs is None else jobs  # side by side they would slow each other
    if dry_run:
        _dry_run(entries, at_once)
        return
    if preset.kind == "partition":
        _draw_partitions(preset, entries, room)
        return
    failed = tables.carry_out(entries, room, at_once, _teller())
    done = tables.results(entries)
    numbers = tables.numbers(entries, done, failed)
    (room / "table.json").write_text(json.dumps([n.plain() for n in numbers], indent=1, ensure_ascii=False) + "\n")
    _show_table(preset, entries, numbers, room, failed, as_json)
    if failed:
        raise typer.Exit(1)


def _show_table(preset: "Preset", entries: Sequence["Entry"], numbers: Any, room: Path, failed: Mapping[Path, str], as_json: bool) -> None:
    from fedstill.experiment.reproduce import results
    from fedstill.report import beside, html

    done = results(entries)
    if as_json:
        print(json.dumps([n.plain() for n in numbers], indent=1, ensure_ascii=False))
    elif numbers:
        beside.show(numbers, preset.title)
    notes = list(dict.fromkeys(f"{e.cell.row} × {e.cell.column}: {e.why_not}" for e in entries if e.why_not))
    notes += [f"{path}: {reason}" for path, reason in failed.items()]
    lines = beside.series(entries, done)
    if lines:
        lead = beside.section(numbers, preset.note, f"{preset.content.get('paper', '')} {preset.content.get('source', '')}") if numbers else ""
        page = html.page(lines, title=preset.title, notes=notes, command=_typed(), lead=lead)
        html.write(page, room / "report.html")
        _say(f"page: {room / 'report.html'}")


def _typed() -> str:
    return shlex.join(["fedstill", *sys.argv[1:]])


def _not_automated(name: str, why: str) -> int:
    print(f"fedstill: {name}: not automated: {why}", file=sys.stderr)
    return 2


def _draw_partitions(preset: "Preset", entries: Sequence["Entry"], room: Path) -> None:
    from html import escape

    from fedstill.core.shelf import Room
    from fedstill.experiment.stage import stage
    from fedstill.report import html
    from fedstill.report.partition import partition_figure, save

    figures = []
    for entry in entries:
        assert entry.plan is not None
        ready = stage(entry.plan, Room())
        figure = partition_figure(ready.counts, ready.class_names)
        label = entry.cell.column
        save(figure, room / f"{''.join(c if c.isalnum() else '-' for c in label)}.svg")
        figures.append((label, figure))
    parts = {"title": escape(preset.title), "subtitle": escape(preset.note), "pictures": html.gallery(figures), "js": html.asset("shell.js"), "data": "{}"}
    html.write(html.fill(parts, {"pictures": "Pictures"}), room / "report.html")
    print(room / "report.html")


@app.command()
def sweep(
    what: Annotated[str, typer.Argument(help="A method's name or an experiment.toml.")],
    grid: Annotated[list[str] | None, typer.Option(help="name=a,b,c: what to vary; several make a grid.")] = None,
    seeds: Seeds = 1,
    data: Annotated[str | None, typer.Option(help="Data set, .npz file or image folder. [mnist-5k]")] = None,
    clients: Annotated[int | None, typer.Option(help="Number of clients. [20]")] = None,
    active: Annotated[float | None, typer.Option(help="Share or number of clients active in a round. [0.2]")] = None,
    alpha: Annotated[float | None, typer.Option(help="Dirichlet α of the partition. [0.1]")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds of communication. [20]")] = None,
    settings: Settings = None,
    out: Annotated[Path, typer.Option(help="Where runs and the page go.")] = Path("runs/sweep"),
    jobs: Jobs = None,
    dry_run: DryRun = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Run a method over a grid of settings and compare. Finished points are not run again."""
    from fedstill.experiment import batch, sweep as sweeps
    from fedstill.experiment.config import read

    base = read(Path(what)) if what.endswith((".toml", ".json")) else {"method": {"name": what}}
    given = {"data": data, "clients": clients, "active": active, "alpha": alpha, "rounds": rounds}
    base.update({key: value for key, value in given.items() if value is not None})
    apply_settings(base, settings or [])
    varied = sweeps.axes(grid or [])
    plans = [(values, _with(base, values)) for values in sweeps.combinations(varied)]
    points = sweeps.points(plans, seeds, out)
    everything = [job for point in points for job in point.jobs]
    _say(f"{len(points)} points × {seeds} seeds: {len(everything)} runs")
    if dry_run:
        _estimate([(point.label, point.jobs) for point in points], jobs)
        return
    with batch.alone(out):
        failed = batch.run_all(sorted(everything, key=lambda job: job.plan.seed), jobs, _teller())
    _show_sweep(points, varied, failed, out, as_json)
    if failed:
        raise typer.Exit(1)


def _with(base: Mapping[str, Any], values: Mapping[str, str]) -> dict[str, Any]:
    """The plan with a point's values; `alpha` is the partition's, as in `fedstill run`."""
    plan = json.loads(json.dumps(base))
    first = sorted(values.items(), key=lambda item: item[0] != "method")  # then what is said of the method
    apply_settings(plan, [f"{name}={value}" for name, value in first if name != "alpha"])
    return {**plan, **({"alpha": values["alpha"]} if "alpha" in values else {})}


def _show_sweep(points: Any, varied: Mapping[str, Sequence[str]], failed: Mapping[Path, str], out: Path, as_json: bool) -> None:
    from fedstill.experiment.batch import finished
    from fedstill.experiment.result import Result
    from fedstill.report import grid, html, tables

    done = {job.path: Result.read(job.path) for point in points for job in point.jobs if finished(job.path)}
    lines = grid.series(points, done)
    rows = [tables.summary(line.runs, line.model, line.group) for line in lines]
    if as_json:
        print(json.dumps(rows, indent=1))
    elif rows:
        tables.show(rows)
    notes = [f"{path}: {reason}" for path, reason in failed.items()]
    for note in notes:
        _say(f"failed: {note}")
    if lines:
        page = html.page(lines, title=f"Sweep over {', '.join(varied)}", notes=notes, command=_typed(), lead=grid.section(points, varied, done))
        html.write(page, out / "report.html")
        _say(f"page: {out / 'report.html'}")


@app.command()
def watch(
    path: Annotated[Path, typer.Argument(help="A run's folder, or a folder of runs.")] = Path("runs"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on localhost (0: any free one).")] = 8765,
    debug: Debug = False,
) -> None:
    """Show runs in progress on a live page on this machine; it reads their folders and nothing else."""
    from fedstill.report.watch import serve

    serve(path, port, lambda address: print(f"watching {path} at {address} (Ctrl-C ends it)", flush=True))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _teller() -> Callable[["News"], None]:
    """A line when a run starts, ends or fails, and now and then between."""
    import time

    told: dict[Path, float] = {}

    def tell(news: "News") -> None:
        name = f"{news.job.path.parent.name}/{news.job.path.name}"
        if news.what == "round" and news.row is not None:
            if time.monotonic() - told.get(news.job.path, 0.0) < 10:
                return
            told[news.job.path] = time.monotonic()
            _say(f"  {name}: round {news.row['round']} of {news.job.plan.rounds}")
        else:
            told[news.job.path] = time.monotonic()
            words = {"kept": "finished before", "started": "started", "done": "finished", "failed": f"failed: {news.reason}"}
            _say(f"{name}: {words[news.what]}")

    return tell


def _dry_run(entries: Sequence["Entry"], at_once: int | None) -> None:
    for entry in entries:
        if entry.why_not:
            print(f"{entry.cell.row} × {entry.cell.column}: {entry.why_not}")
    _estimate([(f"{e.cell.row} × {e.cell.column}", e.jobs) for e in entries if e.jobs], at_once)


def _estimate(cells: Sequence[tuple[str, Any]], at_once: int | None) -> None:
    """What would run, and about how long: a few steps of every different kind of run are measured."""
    from fedstill.core.errors import FedstillError
    from fedstill.experiment import batch, estimate

    known: dict[str, float | str] = {}
    total, unknown, seen = 0.0, 0, set()
    for label, jobs in cells:
        left = [job for job in jobs if not batch.finished(job.path) and job.path not in seen]
        seen |= {job.path for job in jobs}
        plan = jobs[0].plan
        kind = json.dumps({**plan.plain(), "partition": None, "seed": None}, sort_keys=True)
        if left and kind not in known:
            try:
                known[kind] = estimate.seconds(plan)
            except FedstillError as error:
                known[kind] = str(error)
        cost = known.get(kind, 0.0)
        if not left:
            note = "nothing to do"
        elif isinstance(cost, str):
            note, unknown = f"unknown ({cost})", unknown + len(left)
        else:
            note, total = f"about {_span(cost)} each", total + cost * len(left)
        print(f"{label}: {len(left)} of {len(jobs)} runs, {note}")
    workers = min(at_once or batch.cores(), max(1, len(seen)))
    print(f"in all about {_span(total / workers)} with {workers} at once" + (f", and {unknown} runs of unknown length" if unknown else ""))


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
