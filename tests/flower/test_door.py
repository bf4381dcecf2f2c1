"""Who is let in: keys, certificates, plain text, the hub's token."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
from federation import RUNS, Answers, Federation, waited

from fedstill.core.errors import FedstillError, RunError, UsageError

httpx = pytest.importorskip("httpx", reason="the deployed form needs the extra fedstill[flower]")
pytestmark = [pytest.mark.xdist_group("deploy"), pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def turned_away(line: Any, folder: Path) -> str:
    """What a site says that is not let in."""
    from fedstill.flower.node import WarmNode

    with pytest.raises(RunError) as told:
        WarmNode(line, folder, lambda text: None).serve(Answers("nobody", lambda head, body: (b"", None)))
    return str(told.value)


def test_a_site_without_a_registered_key_is_turned_away(federation: Federation, tmp_path: Path) -> None:
    from fedstill.flower.keys import make_key
    from fedstill.flower.node import Line

    assert federation.ca is not None
    key, _ = make_key(tmp_path / "stranger")
    said = turned_away(Line(federation.address, federation.ca.read_bytes(), key), tmp_path)
    assert "turned this site away" in said


def test_a_hub_with_a_wrong_certificate_is_not_believed(federation: Federation, tmp_path: Path) -> None:
    from fedstill.flower.keys import make_certificates
    from fedstill.flower.node import Line

    other = make_certificates(tmp_path, ["127.0.0.1"])["ca.crt"].read_bytes()
    said = turned_away(Line(federation.address, other, federation.key("rogue")), tmp_path)
    assert "not signed by the authority" in said


def test_plain_text_is_refused(federation: Federation, tmp_path: Path) -> None:
    from fedstill.flower.node import Line

    said = turned_away(Line(federation.address, insecure=True), tmp_path)
    assert "does not take plain text" in said


def test_control_takes_the_token(federation: Federation) -> None:
    """Without the token nobody starts a run, reads one, or registers a key; runs' names cannot climb out."""
    from fedstill.flower.control import HubClient

    with HubClient(federation.address, federation.ca, False, "guess") as stranger:
        for ask in (stranger.runs, stranger.instance, lambda: stranger.register("x", b"")):
            with pytest.raises(UsageError, match="token is needed"):
                ask()
    with federation.hub() as hub:
        assert hub.http.get("/fedstill/runs/..%2F..%2Fetc").status_code == 400
        assert hub.http.get("/fedstill/runs/nothing-here").status_code == 404
        assert hub.http.get("/docs").status_code == 404


def test_oversized_requests_are_refused(federation: Federation) -> None:
    noise = b"\0" * (65 << 20)
    with federation.hub() as hub, pytest.raises(httpx.HTTPError):  # 413, or the line is closed before all is sent
        hub.http.post("/v1/fleet/push-object", content=noise).raise_for_status()


def test_a_site_cannot_act_as_another(federation: Federation) -> None:
    """With its own key and another's number it can neither end, nor read, nor speak for, nor keep alive that other."""
    from fedstill.flower.api.fleet import Fleet
    from fedstill.flower.node import _keys

    assert federation.ca is not None
    other = int((federation.folder / "state-site-a" / "node").read_text())
    with Fleet(federation.address, False, federation.ca.read_bytes(), _keys(federation.key("rogue"))) as fleet:
        for act in (fleet.leave, lambda node: fleet.look(node, 1), lambda node: fleet.beat(node, 10.0)):
            with pytest.raises(httpx.HTTPStatusError) as refused:
                act(other)
            assert refused.value.response.status_code == 401
        with pytest.raises(httpx.HTTPStatusError) as refused:
            fleet.register()
        assert refused.value.response.status_code == 404


def test_no_process_beside_the_hub_can_take_a_runs_task(federation: Federation) -> None:
    """A process of this very user on this very machine, without the hub's secret: refused."""
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.runtime import RuntimeHttpClient

    assert federation.ca is not None
    client = RuntimeHttpClient.from_server_address(federation.address, False, federation.ca.read_bytes(), [])
    with contextlib.closing(client), pytest.raises(httpx.HTTPStatusError) as refused:
        client.AcquireTask(AcquireTaskRequest(supported_task_types=["flwr-serverapp"]))
    assert refused.value.response.status_code in (401, 403)


def test_nobody_says_where_a_request_comes_from(federation: Federation) -> None:
    """The guard lets this user's processes ask the Runtime API, whatever address a header names.

    Were it believed, any user of this machine could name the hub's own end of a connection.
    """
    with federation.hub() as hub:
        headers = {"X-Forwarded-For": "10.9.9.9:1", "x-fedstill-token": ""}
        assert "token is needed" in hub.http.post("/v1/elsewhere", headers=headers).text  # the guard's own refusal
        assert "token is needed" not in hub.http.post("/v1/runtime/acquire-task", headers=headers).text


def test_no_token_can_be_read_by_others(federation: Federation) -> None:
    """While a run waits for a fourth site: no process shows a token, and files are their owner's, the database too."""
    from fedstill.experiment.config import experiment
    from fedstill.flower.enrolment import deployable

    def shown() -> list[str]:
        lines = []
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = file.read_bytes().decode(errors="replace").split("\0")
                if federation.address in words:
                    lines.append(" ".join(words))
        return lines

    plan = deployable(experiment({"method": {"name": "fedavg"}, "model": "mlp", "clients": 4, "active": 1.0}))
    keeper = (federation.folder / "hub" / "token").read_text()
    with federation.hub() as hub:
        number = hub.start("waits", plan.plain(), RUNS)
        waited(lambda: any("run_task" in line for line in shown()), RUNS, "the run's own process")
        waited(lambda: any("3 of 4 sites" in line for line in hub.lines(number)), RUNS, "three sites")
        assert not any("--token" in line or keeper in line for line in shown())
        hub.stop(number)
    for folder in ("hub", "state-site-a"):
        for file in (federation.folder / folder).rglob("*"):
            assert file.stat().st_mode & 0o077 == 0, file
    assert keeper.encode() not in (federation.folder / "hub" / "hub.db").read_bytes()


def test_keys_are_not_written_over(tmp_path: Path) -> None:
    from fedstill.flower.keys import make_certificates, make_key

    private, public = make_key(tmp_path / "site-a")
    assert private.stat().st_mode & 0o077 == 0
    assert public.read_text().startswith("ecdsa-sha2-nistp384 ")
    with pytest.raises(UsageError, match="not written over"):
        make_key(tmp_path / "site-a")
    make_certificates(tmp_path, ["hub.example"])
    with pytest.raises(UsageError, match="not written over"):
        make_certificates(tmp_path, ["hub.example"])


def test_the_hub_wants_certificates_unless_told(tmp_path: Path) -> None:
    from fedstill.flower.hub import hub

    with pytest.raises(UsageError, match="--cert is missing"):
        hub("127.0.0.1", 1, tmp_path)
    with pytest.raises(UsageError, match="choose one"):
        hub("127.0.0.1", 1, tmp_path, cert=tmp_path / "x", insecure=True)


def test_a_site_wants_a_key_unless_told(tmp_path: Path) -> None:
    from fedstill.flower.site_process import site

    with pytest.raises(FedstillError, match="needs --key"):
        site("127.0.0.1:1", "digits", tmp_path)


def test_a_hub_that_breaks_off_is_not_taken_for_one_that_wants_no_plain_text() -> None:
    """Before a site was ever let in, a broken answer to plain text is final; later it is a hub that went away."""
    from fedstill.flower.node import Line, _final

    broken, line = httpx.RemoteProtocolError("peer closed connection"), Line("127.0.0.1:1", insecure=True)
    with pytest.raises(RunError, match="does not take plain text"):
        _final(broken, line, entered=False)
    _final(broken, line, entered=True)
