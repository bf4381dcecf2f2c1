"""`fedstill deploy`: start a run on a hub, follow it, survive the hub's restarts, and bring its folder home."""

import json
import shutil
import ssl
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from fedstill.core.errors import RunError, UsageError
from fedstill.flower.api.control import Control, KnownRun
from fedstill.flower.bundle import app_bundle
from fedstill.flower.follow import news_in
from fedstill.flower.guard import TOKEN
from fedstill.flower.messages import readable


class Unreachable(RunError):
    """The hub did not answer: it may be back soon."""


class HubClient:
    """A line to a hub's control."""

    def __init__(self, address: str, ca: Path | None, insecure: bool, token: str) -> None:
        self.address = address
        try:
            root = None if insecure or ca is None else ca.read_bytes()
        except OSError as error:
            raise UsageError(f"--ca {ca}: {error.strerror}") from None
        headers = {TOKEN.decode(): token}
        self.control = Control(address, insecure, root, headers)
        verify: Any = True
        if root is not None:
            verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            verify.load_verify_locations(cadata=root.decode("ascii"))
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

    def alive(self) -> bool:
        """Does the hub answer at all?"""
        try:
            return self.http.get("/fedstill/health").status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def restart(self) -> list[str]:
        """Start the runs again that were under way when the hub went away; their names."""
        names = []
        for known in self.runs():
            if not known.over:
                self.stop(known.id)
                if known.name not in names:
                    names.append(known.name)
                    self._call(partial(self.control.start, app_bundle(), known.order))
        return names

    def register(self, name: str, public: bytes) -> str:
        """Let the site with this key in, under this name."""
        body = {"name": name, "key": public.hex()}
        self._call(lambda: self.http.post("/fedstill/keys", json=body).raise_for_status())
        try:
            self._call(lambda: self.control.register(name, public))
        except RunError as error:
            if "in use" not in str(error):
                raise
            return f"site {name}: key is registered already"
        return f"site {name}: key registered"

    def revoke(self, name: str) -> str:
        """Shut out the site of this name: its key is not taken any more."""
        self._call(lambda: self.http.delete(f"/fedstill/keys/{name}").raise_for_status())
        return f"site {name}: key revoked"

    def approve(self, run: str, experiment: Mapping[str, Any]) -> str:
        """Approve an experiment that somebody else is to start under this run's name."""
        body = {"run": run, "experiment": dict(experiment)}
        self._call(lambda: self.http.post("/fedstill/approvals", json=body).raise_for_status())
        return f"run {run}: approved, to be started by another person"

    def start(self, run: str, experiment: Mapping[str, Any], wait: float, signature: str = "") -> int:
        """Start a run, or go on with the one of this name."""
        order = {"run": run, "experiment": json.dumps(experiment), "wait": float(wait), "signature": signature}
        number = self._call(lambda: self.control.start(app_bundle(), order))
        if number is None:
            raise RunError(f"{self.address}: the hub did not start the run")
        return int(number)

    def runs(self, run_id: int | None = None) -> list[KnownRun]:
        """The hub's runs, the newest first."""
        runs: list[KnownRun] = self._call(lambda: self.control.runs(run_id))
        return runs

    def last(self, run: str) -> KnownRun | None:
        """The newest of the hub's runs with this name."""
        return next((known for known in self.runs() if known.name == run), None)

    def plan_of(self, run: str) -> Mapping[str, Any] | None:
        """The experiment that a run of this name began with, if it has begun."""

        def get() -> Mapping[str, Any] | None:
            response = self.http.get(f"/fedstill/plans/{run}")
            return None if response.status_code == httpx.codes.NOT_FOUND else response.raise_for_status().json()

        plan: Mapping[str, Any] | None = self._call(get)
        return plan

    def stop(self, run_id: int) -> None:
        """End a run; its checkpoints stay."""
        self._call(lambda: self.control.stop(run_id))

    def lines(self, run_id: int) -> Iterator[str]:
        """The run's log from its beginning, line by line, as it grows."""
        rest = ""
        try:
            for piece in self.control.log(run_id):
                *whole, rest = (rest + piece).split("\n")
                yield from whole
        except httpx.TransportError as error:
            raise Unreachable(f"{self.address}: lost the line ({error})") from None
        except httpx.HTTPStatusError as error:
            raise _failure(self.address, error) from None
        if rest:
            yield rest

    def rounds(self, run_id: int) -> int:
        """How many rounds a run has told of so far."""
        log = self._call(lambda: next(self.control.log(run_id), ""))
        return max((news["row"]["round"] for news in news_in(log.split("\n")) if "row" in news), default=0)

    def fetch(self, run: str, out: Path) -> Path:
        """Bring a run's folder home, in place of an older copy of it."""
        target = out / run
        if target.exists() and not (target / "setting.json").exists():
            raise UsageError(
                f"{target}: is there already and no copy of a deployed run; choose another --name or --out"
            )
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out, prefix=".fetch-") as draft:
            file = Path(draft) / "run.tar"

            def get() -> None:
                with self.http.stream("GET", f"/fedstill/runs/{run}") as response, file.open("wb") as tar:
                    if response.is_error:
                        response.read()
                    response.raise_for_status()
                    for piece in response.iter_bytes():
                        tar.write(piece)

            self._call(get)
            try:
                with tarfile.open(file) as tar:
                    tar.extractall(draft, filter="data")
                (came := Path(draft) / run).stat()
                if not came.is_dir():
                    raise NotADirectoryError(f"{run} is a file")
            except (tarfile.TarError, OSError) as error:
                raise RunError(f"{self.address}: what it sent is no run's folder ({readable(str(error))})") from None
            if target.exists():
                shutil.rmtree(target)
            came.rename(target)
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
            raise _failure(self.address, error) from None


def _failure(address: str, error: httpx.HTTPStatusError) -> RunError | UsageError:
    """What a hub's refusal means to the user."""
    status = error.response.status_code
    try:
        body = error.response.text
        answer = json.loads(body)
        detail = answer.get("detail") or answer.get("public_details") or answer.get("message") or body
    except (ValueError, httpx.ResponseNotRead, AttributeError):
        detail = f"HTTP {status}"
    if status >= 500:
        return Unreachable(f"{address}: {readable(str(detail))}")
    kind = UsageError if status in (400, 401, 404) else RunError
    return kind(f"{address}: {readable(str(detail))}")


Tell = Callable[[Mapping[str, Any]], None]


def deploy(
    hub: HubClient,
    run: str,
    experiment: Mapping[str, Any],
    out: Path,
    wait: float,
    tell: Tell,
    patience: float = 600.0,
    signature: str = "",
) -> Path:
    """Start the run (or join it, or go on with it), follow it to its end, and bring it home."""
    known = hub.last(run)
    if known is not None and not known.over:
        _same(hub, run, experiment)
        run_id = known.id
    else:
        run_id = hub.start(run, experiment, wait, signature)
    instance, seen, failed = hub.instance(), 0, ""
    while True:
        try:
            for news in news_in(hub.lines(run_id)):
                if "row" in news:
                    if news["row"]["round"] <= seen:
                        continue  # the log is read from its beginning again after a break
                    seen = news["row"]["round"]
                failed = str(news.get("failed", failed))
                tell(news)
            end = hub.runs(run_id)[0]
            if end.over:
                break
        except Unreachable as error:
            tell({"note": f"{error}; waiting for the hub to come back"})
            now = _back(hub, patience)
            if now != instance:
                instance = now
                run_id = _again(hub, run, run_id, lambda: hub.start(run, experiment, wait, signature), tell)
    if end.result != "completed":
        why = failed or end.details or end.result
        raise RunError(f"run {run} ended: {why}; `fedstill deploy` again goes on from its last checkpoint")
    return hub.fetch(run, out)


def _same(hub: HubClient, run: str, experiment: Mapping[str, Any]) -> None:
    """Refuse to join a run that is under way with other settings."""
    from fedstill.flower.runbook import disagreement

    under_way = hub.plan_of(run)
    if under_way is not None and (wrong := disagreement(under_way, experiment)):
        raise UsageError(f"run {run} is under way with {wrong}: take another --name")


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


def _again(hub: HubClient, run: str, run_id: int, start: Callable[[], int], tell: Tell) -> int:
    """The hub was started anew, and the run's process died with it: follow the one started instead, or start it."""
    last = hub.last(run)
    if last is not None and last.id != run_id:
        tell({"note": "the hub was restarted; the run goes on from its last checkpoint"})
        return last.id  # the hub started it again itself
    known = next((k for k in hub.runs() if k.id == run_id), None)
    if known is not None and known.over and known.result == "completed":
        return run_id
    if known is not None and not known.over:
        hub.stop(run_id)
    tell({"note": "the hub was restarted; the run goes on from its last checkpoint"})
    return start()
