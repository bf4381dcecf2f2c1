"""Running it for years: roles, logs, health, copies, old runs, deploy's patience."""

import io
import json
import os
import sqlite3
import subprocess
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from federation import SITES
from local_post import AVG, local_run

pytest.importorskip("flwr", reason="the deployed form needs the extra fedstill[flower]")

import httpx
from test_guard import Door, _start_request
from test_messages import sites_of

from fedstill.core.errors import FedstillError, UsageError
from fedstill.flower import audit
from fedstill.flower.api.control import KnownRun
from fedstill.flower.approvals import Approvals
from fedstill.flower.audit import AuditLog
from fedstill.flower.bundle import app_bundle
from fedstill.flower.control import HubClient, deploy
from fedstill.flower.keeping import backup, forget, shrunk
from fedstill.flower.keyring import KeyRing
from fedstill.flower.keys import make_kit
from fedstill.flower.private import warn_if_readable
from fedstill.flower.site_health import SiteHealth, served

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Flower's bundles


def _order(run: str, **settings: Any) -> bytes:
    return _order_of(run, json.dumps(settings))


def _order_of(run: str, experiment: str) -> bytes:
    from flwr.common.serde import user_config_to_proto
    from flwr.proto.control_pb2 import StartRunRequest

    request = StartRunRequest.FromString(_start_request(app_bundle()))
    order = user_config_to_proto({"run": run, "experiment": experiment})
    for name, value in order.items():
        request.override_config[name].CopyFrom(value)
    return bytes(request.SerializeToString())


def test_where_approval_is_asked_for_nobody_starts_alone(tmp_path: Path) -> None:
    """alice starts what bob approved; not what she approved herself, not other settings, not under another name."""
    door = Door(tmp_path)
    door.guard.approvals = Approvals(tmp_path)
    start, approve = door.tokens.make("alice", "start", 1), door.tokens.make("bob", "approve", 1)
    both = door.tokens.make("alice", "approve", 1)
    plan = {"method": {"name": "fedavg"}, "seed": 1}

    def started(run: str, token: str = start, **settings: Any) -> int:
        return door.with_token("/v1/control/start-run", token, _order(run, **settings))

    def approved(token: str, run: str, **settings: Any) -> int:
        return door.with_token("/fedstill/approvals", token, json.dumps({"run": run, "experiment": settings}).encode())

    assert started("r", **plan) == 403
    assert approved(start, "r", **plan) == 401  # a start token does not approve
    assert approved(both, "r", **plan) == 200
    assert started("r", **plan) == 403  # alice's own approval is not another's
    assert approved(approve, "r", **plan) == 200
    assert started("r", **plan) == 200
    assert started("r", **{**plan, "seed": 2}) == 403
    assert started("other", **plan) == 403
    assert started("r", approve, **plan) == 401  # an approve token does not start
    assert started("any", door.tokens.keeper, **plan) == 200
    for noise in (b"noise", b"[" * 10**6, b"[]", b'{"run": "r", "experiment": 7}'):
        assert door.with_token("/fedstill/approvals", approve, noise) == 400
        assert door.with_token("/fedstill/keys", door.tokens.keeper, noise) == 400
    for text in ("7", "[" * 10**5, "{"):
        assert door.with_token("/v1/control/start-run", start, _order_of("r", text)) == 400
    assert [e["by"] for e in audit.entries(door.audit) if e["event"] == "approved"] == ["alice", "bob"]


def test_no_person_can_be_called_the_keeper(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="name the person"):
        Door(tmp_path).tokens.make("keeper", "start", 1)


def test_a_log_of_refusals_stays_small_and_says_how_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 in a moment: the first 20 are entered; a second later one more, with the 980 that were left out."""
    log = AuditLog(tmp_path / "audit.jsonl")
    now = time.monotonic()
    monkeypatch.setattr("fedstill.flower.audit.time.monotonic", lambda: now)
    for _ in range(1000):
        log.refusal(why="noise")
    now += 1.5
    log.refusal(why="noise")
    entries = list(audit.entries(log.path))
    assert len(entries) == 21
    assert entries[-1]["left_out"] == 980
    assert audit.verify(log.path).lines == 21


def test_the_hubs_log_has_every_letter_and_every_refusal(sites_data: dict[str, Path], tmp_path: Path) -> None:
    """Three sites, of which one sends noise for its work: enrolments and the refusal are there, and the chain holds."""
    sites = sites_of(sites_data, tmp_path)
    honest = sites["site-b"]

    def rogue(head: bytes, body: bytes | None) -> tuple[bytes, bytes | None]:
        said, sent = honest(head, body)
        return (said, b"noise") if sent else (said, sent)

    local_run({**sites, "site-b": rogue}, tmp_path / "runs", rounds=1)
    entries = list(audit.entries(tmp_path / "runs" / "audit.jsonl"))
    assert sorted(e["site"] for e in entries if e["event"] == "enrolled") == list(SITES)
    assert [e["site"] for e in entries if e["event"] == "refused"] == ["site-b"]
    assert audit.verify(tmp_path / "runs" / "audit.jsonl").lines == len(entries)


def test_a_site_says_how_it_is() -> None:
    """503 without a line to the hub, 200 with one; the numbers count questions by their end, and name no run."""
    there = False
    health = SiteHealth(lambda: there)
    server = served(health, "127.0.0.1:0")
    address = f"http://127.0.0.1:{server.server_port}"
    try:
        with pytest.raises(urllib.error.HTTPError, match="503"):
            urllib.request.urlopen(f"{address}/health")
        there = True
        with urllib.request.urlopen(f"{address}/health") as found:
            assert json.load(found)["status"] == "ok"
        health.count("task", "answered", 1.5)
        health.count("task", "refused", 0.5)
        with urllib.request.urlopen(f"{address}/metrics") as found:
            text = found.read().decode()
        assert 'fedstill_site_questions_total{kind="task",end="answered"} 1' in text
        assert "fedstill_site_work_seconds_total 2" in text
        assert "fedstill_site_connected 1" in text
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{address}/")
    finally:
        server.shutdown()
        server.server_close()
    with pytest.raises(UsageError, match="--health nowhere: must be host:port"):
        served(health, "nowhere")


def test_a_hubs_folder_is_copied_whole_while_it_is_used(tmp_path: Path) -> None:
    """The copy has the token, the keys, the log, the runs and the database as of one moment, and is its owner's."""
    home = tmp_path / "hub"
    home.mkdir()
    Door(home)
    (home / "runs" / "demo").mkdir(parents=True)
    (home / "runs" / "demo" / "metrics.jsonl").write_text("{}\n")
    (home / "flwr").mkdir()
    with closing(sqlite3.connect(home / "hub.db")) as line:
        line.execute("create table t (x)")
        line.execute("insert into t values (7)")
        line.commit()
        line.execute("insert into t values (8)")  # not committed: no part of the copy
        backup(home, tmp_path / "copy.tar")
    assert (tmp_path / "copy.tar").stat().st_mode & 0o077 == 0
    with tarfile.open(tmp_path / "copy.tar") as tar:
        tar.extractall(tmp_path / "back", filter="data")
    names = {path.name for path in (tmp_path / "back").iterdir()}
    assert {"token", "keys.json", "hub.db", "runs"} <= names
    assert "flwr" not in names
    with closing(sqlite3.connect(tmp_path / "back" / "hub.db")) as line:
        assert line.execute("select x from t").fetchall() == [(7,)]
    with pytest.raises(UsageError, match="not written over"):
        backup(home, tmp_path / "copy.tar")
    with pytest.raises(UsageError, match="no hub's folder"):
        backup(tmp_path, tmp_path / "other.tar")


def test_a_folder_is_packed_while_its_files_come_and_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is gone when its turn comes, one is taken by a shorter one of its name: both copies are whole."""
    home = tmp_path / "hub"
    run = home / "runs" / "demo"
    run.mkdir(parents=True)
    Door(home)
    for name in ("experiment.json", "gone", "replaced"):
        (run / name).write_text('{"seed": 1}')
    real = tarfile.TarFile.gettarinfo

    def meanwhile(tar: tarfile.TarFile, name: Any = None, arcname: Any = None, fileobj: Any = None) -> Any:
        made = real(tar, name, arcname, fileobj)
        if str(arcname).endswith("experiment.json"):
            (run / "gone").unlink(missing_ok=True)
        if str(arcname).endswith("replaced"):
            (run / "draft").write_text("")
            (run / "draft").replace(run / "replaced")
        return made

    monkeypatch.setattr(tarfile.TarFile, "gettarinfo", meanwhile)
    backup(home, tmp_path / "copy.tar")
    with tarfile.open(tmp_path / "copy.tar") as tar:
        names = {name for name in tar.getnames() if name.startswith("runs/demo/")}
    assert names == {"runs/demo/experiment.json", "runs/demo/replaced"}


def test_a_damaged_file_of_a_hubs_own_is_a_line(tmp_path: Path) -> None:
    """Tokens: whoever holds one is told, and the keeper goes on. Keys: the hub does not start, and lets nobody in."""
    door = Door(tmp_path)
    token = door.tokens.make("bob", "read", 1)
    for spoilt in ("{", "[1]", json.dumps({key: {} for key in json.loads(door.tokens.file.read_text())})):
        door.tokens.file.write_text(spoilt)
        status, said = door.ask("/fedstill/hub", headers={"X-Fedstill-Token": token})
        assert (status, "tokens.json: damaged" in json.loads(said)["detail"]) == (500, True)
        assert door.with_token("/fedstill/hub", door.tokens.keeper) == 200
    for spoilt in ("{", "[]", "{}", '{"revoked": [], "allowed": {"site-a": "xyz"}}'):
        door.ring.file.write_text(spoilt)
        with pytest.raises(FedstillError, match=r"keys\.json: damaged"):
            KeyRing(tmp_path, {})


def test_old_runs_are_forgotten_and_new_ones_kept(tmp_path: Path) -> None:
    """Thirty days: a run last written to 31 days ago goes, one with a single newer file stays; both are in the log."""
    log = AuditLog(tmp_path / "audit.jsonl")
    for run, ages in {"old": (31, 40), "kept": (31, 1)}.items():
        for number, days in enumerate(ages):
            file = tmp_path / "runs" / run / "clients" / str(number)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("x")
            os.utime(file, (0, time.time() - 86400 * days))
        for folder in (file.parent, file.parent.parent):
            os.utime(folder, (0, time.time() - 86400 * 31))
    assert forget(tmp_path / "runs", 30, log) == ["old"]
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["kept"]
    assert [(e["event"], e["run"]) for e in audit.entries(log.path)] == [("run forgotten", "old")]


def test_a_databases_free_space_is_given_back(tmp_path: Path) -> None:
    file = tmp_path / "hub.db"
    with closing(sqlite3.connect(file)) as line:
        line.execute("create table t (x blob)")
        line.execute("insert into t values (zeroblob(10000000))")
        line.commit()
        line.execute("delete from t")
        line.commit()
    assert file.stat().st_size > 10**7
    shrunk(file)
    assert file.stat().st_size < 10**5


def test_a_kit_has_one_sites_secrets_and_nobody_elses(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("authority")
    kit, public = make_kit(tmp_path / "site-a", "hub.example:9080", tmp_path / "ca.crt")
    assert kit.stat().st_mode & 0o077 == 0
    assert public.read_text().startswith("ecdsa-sha2-nistp384 ")
    with tarfile.open(kit) as tar:
        entries = {entry.name: entry for entry in tar}
        assert sorted(entries) == [f"site-a-kit/{n}" for n in ("ca.crt", "policy.toml", "site-a", "start.sh")]
        assert all(entry.mode & 0o077 == 0 for entry in entries.values())
        script = tar.extractfile(entries["site-a-kit/start.sh"])
        assert script is not None
        assert b"--hub hub.example:9080 --ca ca.crt --key site-a --policy policy.toml" in script.read()


def test_a_kit_starts_with_a_table_whose_columns_are_said(tmp_path: Path) -> None:
    """What follows the data goes to `fedstill site` word by word."""
    (tmp_path / "ca.crt").write_text("authority")
    kit, _ = make_kit(tmp_path / "site-a", "hub.example:9080", tmp_path / "ca.crt")
    with tarfile.open(kit) as tar:
        tar.extractall(tmp_path, filter="data")
    (tmp_path / "fedstill").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "fedstill").chmod(0o755)
    script = ["sh", "site-a-kit/start.sh", "my patients.csv", "--label", "outcome", "--ignore", "hospital"]
    here = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    said = subprocess.run(script, cwd=tmp_path, env=here, capture_output=True, text=True, check=True).stdout
    assert said.splitlines()[-6:] == ["--data", "my patients.csv", "--label", "outcome", "--ignore", "hospital"]


def test_a_key_that_others_can_read_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = tmp_path / "site-a"
    key.write_text("secret")
    key.chmod(0o644)
    warn_if_readable(key)
    assert f"warning: {key} can be read by others" in capsys.readouterr().err
    key.chmod(0o600)
    warn_if_readable(key)
    assert capsys.readouterr().err == ""


class StubHub:
    """A hub whose answers stumble: each call fails so many times with this status before it succeeds."""

    address = "hub.example:1"

    def __init__(self, failures: int, status: int) -> None:
        self.left, self.status = failures, status
        self.plan: dict[str, Any] = {}
        self.known = KnownRun(7, "r", "running", "", "", {})

    def stumble(self) -> None:
        if self.left:
            self.left -= 1
            request = httpx.Request("POST", "http://hub.example")
            response = httpx.Response(self.status, request=request, json={"detail": "stumbled"})
            HubClient._call(self, lambda: response.raise_for_status())  # type: ignore[arg-type]

    def last(self, run: str) -> KnownRun | None:
        return self.known

    def plan_of(self, run: str) -> dict[str, Any]:
        return self.plan

    def instance(self) -> str:
        return "one"

    def lines(self, run_id: int) -> Any:
        yield '@fedstill {"note": "before"}'
        self.stumble()
        yield '@fedstill {"row": {"round": 1}}'

    def runs(self, run_id: int | None = None) -> list[KnownRun]:
        return [KnownRun(7, "r", "finished", "completed", "", {})]

    def fetch(self, run: str, out: Path) -> Path:
        return out / run


def test_deploy_bears_a_hub_that_stumbles(tmp_path: Path) -> None:
    """HTTP 500 three times while it follows: it waits, follows again and brings the run home; 403 ends it."""
    news: list[Any] = []
    hub: Any = StubHub(3, 500)
    assert deploy(hub, "r", {}, tmp_path, 1.0, news.append) == tmp_path / "r"
    assert sum("waiting for the hub" in item.get("note", "") for item in news) == 3
    assert [item["row"]["round"] for item in news if "row" in item] == [1]
    refusing: Any = StubHub(1, 403)
    with pytest.raises(FedstillError, match="stumbled"):
        deploy(refusing, "r", {}, tmp_path, 1.0, news.append)


def line_to(answer: Callable[[httpx.Request], httpx.Response]) -> HubClient:
    """A line to a hub that answers as it likes."""
    hub = HubClient.__new__(HubClient)
    hub.address = "hub.example:1"
    hub.http = httpx.Client(base_url="http://hub.example", transport=httpx.MockTransport(answer))
    return hub


def test_what_a_hub_sends_instead_of_a_run_is_a_line(tmp_path: Path) -> None:
    """A plan under HTTP 500, a folder that is no tar, another folder, one that climbs out: an error in one line."""
    stumbling = line_to(lambda request: httpx.Response(500, json={"detail": "stumbled"}))
    with pytest.raises(FedstillError, match="stumbled"):
        stumbling.plan_of("r")
    assert line_to(lambda request: httpx.Response(404)).plan_of("r") is None

    def packed(name: str) -> bytes:
        made = io.BytesIO()
        with tarfile.open(fileobj=made, mode="w") as tar:
            tar.addfile(tarfile.TarInfo(name))
        return made.getvalue()

    for sent in (b"noise", b"", packed("other/x"), packed("../r/x"), packed("/r")):
        hub = line_to(lambda request, sent=sent: httpx.Response(200, content=sent))  # type: ignore[misc]
        with pytest.raises(FedstillError, match="what it sent is no run's folder"):
            hub.fetch("r", tmp_path / "home")
    assert list((tmp_path / "home").iterdir()) == []
    assert list(tmp_path.iterdir()) == [tmp_path / "home"]
    (tmp_path / "home").rmdir()
    fine = line_to(lambda request: httpx.Response(200, content=packed("r/x")))
    assert (fine.fetch("r", tmp_path / "home") / "x").exists()


def test_deploy_with_other_settings_under_a_running_name_is_refused(tmp_path: Path) -> None:
    hub: Any = StubHub(0, 200)
    hub.plan = {**AVG, "rounds": 5}
    with pytest.raises(UsageError, match="run r is under way with seed = 4, not 9"):
        deploy(hub, "r", {**AVG, "rounds": 7, "seed": 9}, tmp_path, 1.0, lambda news: None)
    with pytest.raises(UsageError, match=r"run r is under way with method\.lr = 0\.05, not 0\.5"):
        deploy(hub, "r", {**AVG, "method": {**AVG["method"], "lr": 0.5}}, tmp_path, 1.0, lambda news: None)
    assert deploy(hub, "r", {**AVG, "rounds": 7}, tmp_path, 1.0, lambda news: None) == tmp_path / "r"
