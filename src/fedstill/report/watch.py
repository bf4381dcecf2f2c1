"""A live page on this machine for runs in progress. It reads the runs' folders and nothing else."""

import json
from collections.abc import Callable, Mapping
from functools import cached_property
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import fmean
from typing import Any

from fedstill.core.errors import UsageError
from fedstill.experiment.batch import finished
from fedstill.experiment.config import Experiment, plan_without_data
from fedstill.experiment.drive import active
from fedstill.experiment.lock import writer
from fedstill.experiment.result import Result
from fedstill.experiment.rundir import RunDir
from fedstill.parts.timetable import in_flight
from fedstill.report import html
from fedstill.report.digest import finite
from fedstill.report.tables import WRONG, find_runs, metrics_of

RECENT = 5
"""So many rounds say how long the next will take."""


class Observed:
    """A run's folder, read again only where it has grown."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.folder = RunDir(path)
        self.seen: tuple[int, int] = (0, 0)
        self.rows: list[dict[str, Any]] = []

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """Its experiment."""
        return self.folder.read("experiment.json")  # type: ignore[no-any-return]

    @cached_property
    def plan(self) -> Experiment | None:
        """Its experiment as a value, where the method is known here."""
        return plan_without_data(self.settings)

    def refresh(self) -> None:
        """Read the rounds that have come since."""
        file = self.path / "metrics.jsonl"
        if file.exists():
            now = (file.stat().st_mtime_ns, file.stat().st_size)
            if now != self.seen:
                self.seen, self.rows = now, self.folder.rows()

    @property
    def result(self) -> Result:
        """What it gave so far."""
        return Result(self.settings, self.rows, self.path)

    def state(self) -> dict[str, Any]:
        """What the page shows of it."""
        self.refresh()
        plan, rows = self.settings, self.rows
        evaluated = [row for row in rows if row.get("models")]
        result = self.result
        models = result.models
        spent = [sum(row["seconds"].values()) for row in rows]
        pace = fmean(spent[-RECENT:]) if spent else None
        status = self._status()
        going = status in ("running", "starting")
        return {
            "name": str(self.path),
            "method": plan["method"]["name"],
            "data": plan["data"] if isinstance(plan["data"], str) else "own data",
            "seed": plan["seed"],
            "clients": plan["clients"],
            "planned": plan["rounds"],
            "done": len(rows),
            "status": status,
            "training": self._training() if going else [],
            "health": _health(result),
            "bytes": {way: sum(sum(row["bytes"][way].values()) for row in rows) for way in ("down", "up")},
            "seconds": sum(spent),
            "left": None if pace is None or not going else pace * (plan["rounds"] - len(rows)),
            "rounds": [row["round"] for row in evaluated],
            "models": {m: {k.key: result.curve(m, k.key) for k in result.metrics} for m in models},
            "worst": {m: _worst(result, m) for m in models},
        }

    def _training(self) -> list[int]:
        """The clients that are at their turns, as far as can be told from here."""
        if self.plan is None:
            return []
        trained = self.rows[-1].get("trained", len(self.rows)) if self.rows else 0
        if trained >= self.plan.rounds:
            return []
        overlapping = self.plan.pace is not None and self.plan.pace.overlapping
        return (in_flight(self.rows) if overlapping else []) or active(self.plan, trained)

    def _status(self) -> str:
        if writer(self.path) is not None:
            return "running" if self.rows else "starting"
        if finished(self.path):
            return "finished"
        if (self.path / "last_error.txt").exists():
            return "failed"
        return "stopped"  # nobody writes there: the lock would say so


def _health(result: Result) -> list[str]:
    """What is wrong with a run: in sum, and the latest rounds with a reply that was not used; empty when it is well."""
    health = result.health
    lines = [line for entry in health.rounds if (line := entry.line())]
    return [str(health), *lines[-RECENT:]] if health.total["used"] < health.total["asked"] else []


def _worst(result: Result, model: str) -> dict[str, Any] | None:
    worst = result.worst(model)
    return None if worst is None else {"client": worst[0], "value": worst[1]}


class Observatory:
    """All runs at or under a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known: dict[Path, Observed] = {}

    def state(self) -> dict[str, Any]:
        """Everything the page shows now; a run that cannot be read yet is named with the reason."""
        runs, notes = [], []
        for path in find_runs(self.path):
            try:
                runs.append(self.known.setdefault(path, Observed(path)).state())
            except WRONG as error:
                self.known.pop(path, None)
                notes.append(f"{path}: {error}")
        if not runs and not notes:
            notes.append(f"{self.path}: no run there yet; waiting")
        shown = metrics_of(self.known[path].result for path in self.known)
        state = {"metrics": [metric.plain() for metric in shown], "runs": runs, "notes": notes}
        return finite(state)  # type: ignore[no-any-return]


def page(title: str) -> str:
    """The live page: the report's looks, fed by the server it came from."""
    text = html.asset("watch.html")
    for name, part in {
        "title": escape(title),
        "css": html.asset("page.css"),
        "js": "".join(map(html.asset, ("save.js", "charts.js", "watch.js", "shell.js"))),
    }.items():
        text = text.replace(f"{{{{{name}}}}}", part)
    return text


def server(path: Path, port: int) -> ThreadingHTTPServer:
    """The server, on localhost only; `server_port` says where when the port was 0."""
    if not path.is_dir():
        raise UsageError(f"{path}: no such folder")
    observatory, shown = Observatory(path), page(f"Runs in {path}")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.headers.get("Host", "").rsplit(":", 1)[0]
            if name not in ("127.0.0.1", "localhost"):  # another site's name that points here gets nothing
                self.send_error(403)
            elif self.path == "/":
                self._answer("text/html", shown)
            elif self.path == "/state.json":
                self._answer("application/json", json.dumps(observatory.state(), separators=(",", ":")))
            else:
                self.send_error(404)

        def _answer(self, kind: str, text: str) -> None:
            body = text.encode()
            self.send_response(200)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            return

    try:
        return ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise UsageError(f"port = {port}: {error.strerror}; choose another with --port") from None


def serve(path: Path, port: int, announce: Callable[[str], None]) -> None:
    """Serve until interrupted."""
    with server(path, port) as here:
        announce(f"http://127.0.0.1:{here.server_port}/")
        here.serve_forever()
