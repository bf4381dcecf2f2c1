"""`fedstill deploy`: start a run on a hub, follow it, survive the hub's restarts, and bring its folder home."""

import json
import shutil
import ssl
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from flwr.cli.build import build_fab_from_files
from flwr.common.serde import fab_to_proto, user_config_from_proto, user_config_to_proto
from flwr.proto.control_pb2 import (
    ListRunsRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    StreamLogsRequest,
)
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor

from fedstill.core.errors import RunError, UsageError
from fedstill.flower.apps import TELL
from fedstill.flower.hub import TOKEN

PROJECT = """[project]
name = "fedstill"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedstill"

[tool.flwr.app.components]
serverapp = "fedstill.flower.apps:server"
clientapp = "fedstill.flower.apps:client"

[tool.flwr.app.config]
run = ""
experiment = ""
wait = 60.0
"""


class Unreachable(RunError):
    """The hub did not answer: it may be back soon."""


@dataclass(frozen=True)
class Known:
    """A run as the hub knows it."""

    id: int
    name: str
    status: str
    result: str
    details: str

    @property
    def over(self) -> bool:
        """Has it ended, well or not?"""
        return self.status == "finished"


class HubClient:
    """A line to a hub's control."""

    def __init__(self, address: str, ca: Path | None, insecure: bool, token: str) -> None:
        self.address = address
        self.token = token
        try:
            root = None if insecure or ca is None else ca.read_bytes()
        except OSError as error:
            raise UsageError(f"--ca {ca}: {error.strerror}") from None
        self.control = ControlHttpClient.from_server_address(
            address,
            insecure,
            root,
            interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI"), _Pass(token)],
        )
        verify: Any = True
        if root is not None:
            verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            verify.load_verify_locations(cadata=root.decode("ascii"))
        headers = {TOKEN.decode(): token}
        base = f"{'http' if insecure else 'https'}://{address}"
        self.http = httpx.Client(base_url=base, verify=verify, headers=headers, timeout=30.0)

    def __enter__(self) -> "HubClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.control.close()
        self.http.close()

    def instance(self) -> str:
        """Which start of the hub this is: another one after every restart."""
        return str(self._call(lambda: self.http.get("/fedstill/hub").raise_for_status().json()["instance"]))

    def register(self, name: str, public: bytes) -> str:
        """Let the site with this key in, under this name."""
        try:
            self._call(lambda: self.control.RegisterNode(RegisterNodeRequest(public_key=public, name=name)))
        except RunError as error:
            if "in use" not in str(error):
                raise
            return f"site {name}: key is registered already"
        return f"site {name}: key registered"

    def start(self, run: str, experiment: Mapping[str, Any], wait: float) -> int:
        """Start a run, or go on with the one of this name."""
        import hashlib

        content, _ = build_fab_from_files({"pyproject.toml": PROJECT.encode()})
        order: Any = {"run": run, "experiment": json.dumps(experiment), "wait": float(wait)}
        request = StartRunRequest(
            fab=fab_to_proto(Fab(hashlib.sha256(content).hexdigest(), content, {})),
            override_config=user_config_to_proto(order),
        )
        found = self._call(lambda: self.control.StartRun(request))
        if not found.HasField("run_id"):
            raise RunError(f"{self.address}: the hub did not start the run")
        return int(found.run_id)

    def runs(self, run_id: int | None = None) -> list[Known]:
        """The hub's runs, the newest first."""
        request = ListRunsRequest(limit=100) if run_id is None else ListRunsRequest(run_id=run_id)
        found = self._call(lambda: self.control.ListRuns(request))
        return [
            Known(
                r.run_id, str(user_config_from_proto(r.override_config).get("run", "")), r.status.status,
                r.status.sub_status, r.status.details,
            )
            for r in sorted(found.run_dict.values(), key=lambda r: r.pending_at, reverse=True)
        ]  # fmt: skip

    def last(self, run: str) -> Known | None:
        """The newest of the hub's runs with this name."""
        return next((known for known in self.runs() if known.name == run), None)

    def stop(self, run_id: int) -> None:
        """End a run; its checkpoints stay."""
        self._call(lambda: self.control.StopRun(StopRunRequest(run_id=run_id)))

    def lines(self, run_id: int) -> Iterator[str]:
        """The run's log from its beginning, line by line, as it grows."""
        rest = ""
        try:
            for piece in self.control.StreamLogs(StreamLogsRequest(run_id=run_id, after_timestamp=0.0)):
                *whole, rest = (rest + piece.log_output).split("\n")
                yield from whole
        except httpx.TransportError as error:
            raise Unreachable(f"{self.address}: lost the line ({error})") from None
        except httpx.HTTPStatusError as error:
            raise _told(self.address, error) from None
        if rest:
            yield rest

    def rounds(self, run_id: int) -> int:
        """How many rounds a run has told of so far."""
        log = self._call(
            lambda: next(self.control.StreamLogs(StreamLogsRequest(run_id=run_id, after_timestamp=0.0)), None)
        )
        lines = [] if log is None else log.log_output.split("\n")
        return max((told["row"]["round"] for told in _told_by(iter(lines)) if "row" in told), default=0)

    def fetch(self, run: str, out: Path) -> Path:
        """Bring a run's folder home, in place of an older copy of it."""
        target = out / run
        mine = target / "setting.json"
        if target.exists() and not mine.exists():
            raise UsageError(
                f"{target}: is there already and no copy of a deployed run; choose another --name or --out"
            )
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out, prefix=".fetch-") as draft:
            file = Path(draft) / "run.tar"

            def get() -> None:
                with self.http.stream("GET", f"/fedstill/runs/{run}") as found, file.open("wb") as tar:
                    if found.is_error:
                        found.read()
                    found.raise_for_status()
                    for piece in found.iter_bytes():
                        tar.write(piece)

            self._call(get)
            with tarfile.open(file) as tar:
                tar.extractall(draft, filter="data")
            if target.exists():
                shutil.rmtree(target)
            (Path(draft) / run).rename(target)
        return target

    def _call(self, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except httpx.TransportError as error:
            text = str(error)
            if "certificate verify failed" in text.lower() or "CERTIFICATE_VERIFY_FAILED" in text:
                raise UsageError(
                    f"{self.address}: its certificate is not signed by the authority of --ca ({text})"
                ) from None
            raise Unreachable(f"{self.address}: no answer ({text or type(error).__name__})") from None
        except httpx.HTTPStatusError as error:
            raise _told(self.address, error) from None


class _Pass:
    """Shows the hub's token with every request."""

    def __init__(self, token: str) -> None:
        self.token = token

    def intercept(self, context: Any, call_next: Any) -> httpx.Response:
        """Add the header."""
        context.request.headers[TOKEN.decode()] = self.token
        found: httpx.Response = call_next(context)
        return found


def _told(address: str, error: httpx.HTTPStatusError) -> RunError | UsageError:
    try:
        body = error.response.text
        said = json.loads(body)
        detail = said.get("detail") or said.get("public_details") or said.get("message") or body
    except (ValueError, httpx.ResponseNotRead, AttributeError):
        detail = f"HTTP {error.response.status_code}"
    kind = UsageError if error.response.status_code in (401, 404) else RunError
    return kind(f"{address}: {detail}")


Tell = Callable[[Mapping[str, Any]], None]


def deploy(
    hub: HubClient, run: str, experiment: Mapping[str, Any], out: Path, wait: float, tell: Tell, patience: float = 600.0
) -> Path:
    """Start the run (or join it, or go on with it), follow it to its end, and bring it home."""
    known = hub.last(run)
    run_id = known.id if known is not None and not known.over else hub.start(run, experiment, wait)
    instance, seen, failed = hub.instance(), 0, ""
    while True:
        try:
            for what in _told_by(hub.lines(run_id)):
                if "row" in what:
                    if what["row"]["round"] <= seen:
                        continue  # the log is read from its beginning again after a break
                    seen = what["row"]["round"]
                failed = str(what.get("failed", failed))
                tell(what)
            end = hub.runs(run_id)[0]
            if end.over:
                break
        except Unreachable as error:
            tell({"note": f"{error}; waiting for the hub to come back"})
            now = _back(hub, patience)
            if now != instance:
                instance = now
                run_id = _again(hub, run, run_id, experiment, wait, tell)
    if end.result != "completed":
        why = failed or end.details or end.result
        raise RunError(f"run {run} ended: {why}; `fedstill deploy` again goes on from its last checkpoint")
    return hub.fetch(run, out)


def _told_by(lines: Iterator[str]) -> Iterator[Mapping[str, Any]]:
    for line in lines:
        if line.startswith(TELL):
            try:
                yield json.loads(line.removeprefix(TELL))
            except ValueError:
                continue


def _back(hub: HubClient, patience: float) -> str:
    """Wait until the hub answers again."""
    until, pause = time.monotonic() + patience, 0.5
    while True:
        try:
            return hub.instance()
        except Unreachable:
            if time.monotonic() > until:
                raise
            time.sleep(pause)
            pause = min(2 * pause, 10.0)


def _again(hub: HubClient, run: str, run_id: int, experiment: Mapping[str, Any], wait: float, tell: Tell) -> int:
    """The hub was started anew, and the run's process died with it: start it again; it goes on from its checkpoint."""
    known = next((k for k in hub.runs() if k.id == run_id), None)
    if known is not None and known.over and known.result == "completed":
        return run_id
    if known is not None and not known.over:
        hub.stop(run_id)
    tell({"note": "the hub was restarted; the run goes on from its last checkpoint"})
    return hub.start(run, experiment, wait)
