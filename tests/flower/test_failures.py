"""Sites and hubs that die, and sites that send what they should not."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from federation import LONG, RUNS, SITES, STARTS, Answer, Federation, waited

import fedstill
from fedstill.core import record
from fedstill.core.errors import RunError
from fedstill.core.record import leaves
from fedstill.experiment.rundir import RunDir
from fedstill.flower import audit
from fedstill.flower.messages import Enrolled, ExamRequest, Task, question
from fedstill.flower.site import Site

pytestmark = [pytest.mark.xdist_group("deploy"), pytest.mark.filterwarnings("ignore::DeprecationWarning")]

AVG = {"method": {"name": "fedavg", "lr": 0.05, "epochs": 1}, "model": "mlp", "seed": 4}
KF = {"method": {"name": "fedkf", "lr": 0.05, "epochs": 1, "noise": 8, "channels": 4}, "model": "mlp", "seed": 4}


def after_round(number: int, do: Callable[[], Any]) -> Callable[[Any], None]:
    """Do something, once, when a round has ended, while the next is under way."""
    done = threading.Event()

    def tell(told: Any) -> None:
        if "row" in told and told["row"]["round"] >= number and not done.is_set():
            done.set()
            do()

    return tell


def in_round(number: int, do: Callable[[], Any], data: Path, state: Path) -> Answer:
    """A fourth site, which does something, once, when it is asked for its turn in this round; then it takes it."""
    site, done = Site("rogue", str(data), state), threading.Event()

    def answer(head: bytes, body: bytes | None) -> tuple[bytes, bytes | None]:
        asked = question(head)
        if isinstance(asked, Task) and asked.round == number and not done.is_set():
            done.set()
            do()
        return site.answer(head, body)

    return answer


def test_rogue_sites_are_refused_and_named(federation: Federation, sites_data: dict[str, Path]) -> None:
    """Round by round: wrong shape, NaN, another run's answer, noise too large, noise of no form; the others go on.

    The rogue is a fourth site. It answers exams honestly, and is in quarantine after five failures.
    """
    site = Site("rogue", str(sites_data["site-a"]), federation.folder / "state-rogue-worker")
    noise = 1 << 25

    def rogue(head: bytes, body: bytes | None) -> tuple[bytes, bytes | None]:
        said, sent = site.answer(head, body)
        asked = question(head)
        if not isinstance(asked, Task):
            return said, sent
        upload = record.loads(sent or b"")
        weights = dict(upload.weights)
        first = next(iter(weights))
        match asked.round:
            case 0:
                weights[first] = weights[first][:1]
            case 1:
                weights[first] = weights[first] * torch.nan
            case 2:
                return said.replace(asked.run.encode(), b"another"), sent
            case 3:
                return said, torch.randint(256, (noise,), dtype=torch.uint8).numpy().tobytes()
            case _:
                return said, b"no record at all"
        return said, record.dumps(replace(upload, weights=weights))

    federation.join("rogue", rogue)
    told: list[Any] = []
    home = federation.deploy({**AVG, "clients": 4, "rounds": 6, "quarantine": 5}, told.append)
    federation.leave()
    rows = RunDir.open(home).rows()
    why = [row["missing_sites"] for row in rows]
    assert all(set(names) == {"rogue"} for names in why)
    for number, words in enumerate(
        ["has shape", "not finite", "'another'", "larger than", "not a record", "quarantine"]
    ):
        assert words in why[number]["rogue"], why[number]
    assert all(sorted(row["client_seconds"]) == ["1", "2", "3"] for row in rows)  # rogue sorts first
    assert any("site rogue is in quarantine after 5 failures" in what.get("note", "") for what in told)
    assert database(federation) < 64 << 20


def database(federation: Federation) -> int:
    """Bytes of the hub's database, with what belongs to it."""
    return sum(file.stat().st_size for file in (federation.folder / "hub").glob("hub.db*"))


@LONG
def test_a_killed_site_is_missed_and_comes_back_with_its_state(
    federation: Federation, sites_data: dict[str, Path], tmp_path: Path
) -> None:
    """SIGKILL in the middle of round 3: the round ends without the site, round 4 too, round 5 has it again.

    A fourth site makes it sure: it freezes the other before round 3, kills it in that round, and holds round 4 until it
    is connected again and the hub has heard of it. The generator of the killed site is on its disk: had it started from
    a new one, the weights after its return would differ from those of a simulation in which it missed the same rounds.
    """
    back, process = threading.Event(), federation.processes["site-b"]

    def logged(event: str) -> int:
        """How often the hub has entered this of site-b."""
        entries = audit.entries(federation.folder / "hub" / "audit.jsonl")
        wanted = (event, "comes-back", "site-b")
        return sum((entry["event"], entry.get("run"), entry.get("site")) == wanted for entry in entries)

    site = Site("rogue", str(sites_data["site-a"]), federation.folder / "state-gate")

    def gate(head: bytes, body: bytes | None) -> tuple[bytes, bytes | None]:
        match question(head):
            case ExamRequest(round=1):
                waited(lambda: logged("received") == 5, RUNS, "the other's answers: who it is, two turns, two exams")
                os.kill(process.pid, signal.SIGSTOP)
            case Task(round=2):
                federation.kill("site-b")
            case Task(round=3):
                assert back.wait(RUNS)
            case ExamRequest(round=3):
                waited(lambda: logged("enrolled") == 2, RUNS, "the hub to know that the other is back")
        return site.answer(head, body)

    def tell(told: Any) -> None:
        if "row" in told and told["row"]["round"] == 3:
            federation.start_site("site-b", sites_data["site-b"], "--public", str(sites_data["public"]))
            back.set()

    federation.join("rogue", gate)
    plan = {**KF, "clients": 4, "rounds": 5, "name": "comes-back"}
    home = federation.deploy(plan, tell)
    federation.leave()
    rows = RunDir.open(home).rows()
    assert [list(row["missing_sites"]) for row in rows] == [[], [], ["site-b"], ["site-b"], []]
    assert rows[2]["missing_sites"]["site-b"].startswith("offline")
    same = simulated_without(plan, [sites_data[n] for n in ("site-a", *SITES)], {2, 3}, 2, tmp_path)
    there = RunDir.open(home).latest()[0]
    assert there is not None
    ours, theirs = dict(leaves(same)), dict(leaves(there.server))
    for name, tensor in ours.items():
        scale = there.server.memory.samples if "/total/" in name else 1.0  # a sum over samples, not a mean
        assert torch.allclose(tensor.double() / scale, theirs[name].double() / scale, rtol=0, atol=1e-5), name


def simulated_without(plan: Any, data: list[Path], missed: set[int], client: int, folder: Path) -> Any:
    """The server's state of a simulation in which one client is missing in these rounds; `folder` has its shelves."""
    from fedstill.core.loop import rounds
    from fedstill.core.method import Reply
    from fedstill.core.shelf import Storage, shelves
    from fedstill.experiment.config import experiment
    from fedstill.experiment.stage import stage
    from fedstill.transports import Inline

    known = {k: v for k, v in plan.items() if k != "name"}
    made = experiment({**known, "data": [str(path) for path in data], "active": 1.0})
    ready = stage(made, Storage(folder))
    inner = Inline(made.method, ready.party, ready.env.shelf("clients"))

    class Missing:
        states = inner.states

        def exchange(self, env: Any, downs: Any) -> list[Any]:
            there = {k: d for k, d in downs.items() if not (k == client and env.round in missed)}
            found = {r.client: r for r in inner.exchange(env, there)}
            return [found.get(k) or Reply(k, env.sizes[k], None, error="offline") for k in downs]

    server = None
    for done in rounds(made.method, ready.env, Missing(), lambda t: list(range(made.clients)), made.rounds):
        server = done.server
    for shelf in shelves(server):
        shelf.save()
    return server


@LONG
def test_a_slow_site_does_not_hold_up_the_others(federation: Federation, sites_data: dict[str, Path]) -> None:
    """A site that keeps its answer until the round has ended is missing in it; the next round has it again."""
    ended = threading.Event()
    site = Site("rogue", str(sites_data["site-a"]), federation.folder / "state-slow")

    def slow(head: bytes, body: bytes | None) -> tuple[bytes, bytes | None]:
        asked = question(head)
        if isinstance(asked, Task) and asked.round == 1:
            assert ended.wait(RUNS)
        return site.answer(head, body)

    federation.join("rogue", slow)
    home = federation.deploy({**AVG, "clients": 4, "rounds": 3, "deadline": 60}, after_round(2, ended.set))
    federation.leave()
    rows = RunDir.open(home).rows()
    assert [list(row["missing_sites"]) for row in rows] == [[], ["rogue"], []]
    assert "no answer within 60 s" in rows[1]["missing_sites"]["rogue"]


@LONG
def test_a_gigabyte_of_noise_is_left_where_it_is(federation: Federation, sites_data: dict[str, Path]) -> None:
    """The hub stops reading after 16 MiB and the size of a model; the round ends with the others."""
    site = Site("rogue", str(sites_data["site-a"]), federation.folder / "state-noise")

    def rogue(head: bytes, body: bytes | None) -> tuple[bytes, bytes | None]:
        said, sent = site.answer(head, body)
        return said, os.urandom(1 << 30) if isinstance(question(head), Task) else sent

    federation.join("rogue", rogue)
    before, stored = most_memory(federation), database(federation)
    home = federation.deploy({**AVG, "clients": 4, "rounds": 1})
    federation.leave()
    (row,) = RunDir.open(home).rows()
    assert "refused: its answer" in row["missing_sites"]["rogue"]
    assert sorted(row["client_seconds"]) == ["1", "2", "3"]
    after = most_memory(federation)
    print(f"1 GiB of noise: hub {before} MiB before, {after} MiB at most; hub.db {stored} bytes before,", end=" ")
    print(f"{database(federation)} bytes after")
    assert after - before < 512  # MiB; all of it would be more
    assert database(federation) < 64 << 20


def most_memory(federation: Federation) -> int:
    """The most memory that the hub's process has had so far, in MiB."""
    status = Path(f"/proc/{federation.processes['hub'].pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) >> 10


@LONG
def test_memory_of_the_hub_is_bounded_before_anybody_is_known(federation: Federation) -> None:
    """200 connections without a key: half send chunk after chunk of a body, half announce one and send little.

    The hub answers 401 or closes the line, and is there for its sites all the same.
    """
    import socket
    import ssl

    trust = ssl.create_default_context(cafile=str(federation.ca))
    before = most_memory(federation)
    head = b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: hub\r\n"
    lines: list[ssl.SSLSocket] = []
    refused = 0
    try:
        for number in range(200):
            raw = socket.create_connection(("127.0.0.1", federation.port), timeout=60)
            lines.append(trust.wrap_socket(raw, server_hostname="127.0.0.1"))
            chunked = number % 2 == 0
            announced = b"tRaNsFeR-eNcOdInG: ChUnKeD" if chunked else b"Content-Length: 16000000"
            lines[-1].sendall(head + announced + b"\r\n\r\n")
            with contextlib.suppress(OSError):
                for _ in range(8 if chunked else 1):
                    lines[-1].sendall(b"100000\r\n" + b"x" * (1 << 20) + b"\r\n" if chunked else b"x")
        for line in lines:
            with contextlib.suppress(OSError):
                refused += b" 401 " in line.recv(1000)
    finally:
        for line in lines:
            line.close()
    after = most_memory(federation)
    print(f"200 lines without a key: {refused} answered 401; hub {before} MiB before, {after} MiB at most")
    assert after - before < 512  # MiB; all of it would be more
    with federation.hub() as hub:
        assert hub.alive()


@LONG
def test_a_killed_hub_loses_only_the_round_under_way(
    federation: Federation, sites_data: dict[str, Path], tmp_path: Path
) -> None:
    """SIGKILL in round 3 of 5, and started again: `deploy` goes on, to the bits of an undisturbed simulation."""

    def kill() -> None:
        federation.kill("hub", signal.SIGKILL)
        threading.Thread(target=federation.start_hub).start()

    told: list[Any] = []
    federation.join("rogue", in_round(2, kill, sites_data["site-a"], federation.folder / "state-kills-hub"))
    home = federation.deploy({**KF, "rounds": 5, "clients": 4}, told.append)
    federation.leave()
    rows = RunDir.open(home).rows()
    assert [row["round"] for row in rows] == [1, 2, 3, 4, 5]
    assert [row["missing"] for row in rows] == [{}] * 5
    assert any("restarted" in what.get("note", "") for what in told)
    started = [what["started"]["first"] for what in told if "started" in what]
    assert started == [0, 2]
    same_as_simulated(home, sites_data, 5, tmp_path)


@LONG
def test_a_killed_run_goes_on_to_the_same_bits(
    federation: Federation, sites_data: dict[str, Path], tmp_path: Path
) -> None:
    """The run's own process is killed in round 3 of 4: the run ends and says so, and deployed again it goes on."""

    def kill() -> None:
        hub = federation.processes["hub"].pid
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                if b"run_task" in file.read_bytes() and f"PPid:\t{hub}" in (file.parent / "status").read_text():
                    os.kill(int(file.parent.name), signal.SIGKILL)

    federation.join("rogue", in_round(2, kill, sites_data["site-a"], federation.folder / "state-kills-run"))
    plan = {**KF, "rounds": 4, "clients": 4, "name": "killed-run"}
    with pytest.raises(RunError, match="goes on from its last checkpoint"):
        federation.deploy(plan)
    home = federation.deploy(plan)
    federation.leave()
    rows = RunDir.open(home).rows()
    assert [(row["round"], row["missing"]) for row in rows] == [(t, {}) for t in (1, 2, 3, 4)]
    same_as_simulated(home, sites_data, 4, tmp_path)


def same_as_simulated(home: Path, data: dict[str, Path], rounds: int, folder: Path) -> None:
    """Is a run of four sites, the first with the data of the second, the simulator's to the bits?"""
    files = [str(data[name]) for name in ("site-a", *SITES)]
    result = fedstill.run(**KF, data=files, rounds=rounds, active=1.0, workers="inline", out=folder, name="s")
    there, here = RunDir.open(home).latest()[0], RunDir.open(folder / "s").latest()[0]
    assert here is not None
    assert there is not None
    ours, theirs = dict(leaves(here.server)), dict(leaves(there.server))
    assert ours.keys() == theirs.keys()
    assert max(float((ours[n].double() - theirs[n].double()).abs().max()) for n in ours if ours[n].numel()) <= 1e-6
    assert RunDir.open(home).rows()[-1]["models"]["overall"]["amp"] == pytest.approx(result.last("overall")["amp"])


@LONG
def test_an_endless_turn_blocks_neither_the_next_run_nor_the_end_of_a_site(
    federation: Federation, sites_data: dict[str, Path]
) -> None:
    """10^9 epochs: the run is stopped and another one is done; SIGTERM in the middle of such a turn ends a site."""
    from fedstill.experiment.config import experiment
    from fedstill.flower.enrolment import deployable

    endless = {"method": {"name": "fedavg", "epochs": 10**9}, "model": "mlp", "clients": 3, "active": 1.0, "rounds": 1}
    plan = deployable(experiment(endless)).plain()
    with federation.hub() as hub:
        for name in ("endless", "endless-again"):
            before = federation.log("site-a").count("each turn sends")
            number = hub.start(name, plan, 60.0)
            federation.until_logged("site-a", "each turn sends", before + 1)
            time.sleep(3)
            if name == "endless":
                hub.stop(number)
                rows = RunDir.open(federation.deploy({**AVG, "rounds": 1})).rows()
                assert rows[0]["missing_sites"] == {}
        process = federation.processes["site-a"]
        process.terminate()
        assert process.wait(STARTS) == 0
        hub.stop(number)
    federation.kill("site-a")
    federation.start_site("site-a", sites_data["site-a"], "--public", str(sites_data["public"]))


@LONG
def test_a_restarted_hub_goes_on_with_nobody_attached(federation: Federation) -> None:
    """Started, and nobody follows it: the hub is killed after a round and started again; the run ends by itself."""
    from fedstill.experiment.config import experiment
    from fedstill.flower.enrolment import deployable

    plan = deployable(experiment({"clients": 3, "active": 1.0, **AVG, "rounds": 4})).plain()
    metrics = federation.folder / "hub" / "runs" / "alone" / "metrics.jsonl"
    with federation.hub() as hub:
        hub.start("alone", plan, 60.0)
        waited(lambda: metrics.exists() and metrics.read_text().count("\n") >= 1, RUNS, "a first round")
    federation.kill("hub", signal.SIGKILL)
    federation.start_hub()
    with federation.hub() as hub:
        waited(lambda: (known := hub.last("alone")) and known.result == "completed", RUNS, "the run's end")
    assert [row["round"] for row in RunDir.open(metrics.parent).rows()] == [1, 2, 3, 4]


def test_an_enrolment_says_counts_only(sites_data: dict[str, Path], tmp_path: Path) -> None:
    """What a site tells of itself is a few numbers, whatever its data; no field is as long as its samples."""
    import json

    from fedstill.experiment.config import experiment
    from fedstill.flower.messages import FORMAT, Enrol, answer

    site = Site("site-a", str(sites_data["site-a"]), tmp_path)
    plan = experiment({**AVG, "clients": 3, "active": 1.0}).plain()
    asked = Enrol(run="r", run_id="0" * 32, format=FORMAT, experiment=json.dumps(plan), signature="")
    found = answer(site.answer(asked.dumps())[0])
    assert isinstance(found, Enrolled)
    assert (found.samples, found.tests) == (96, 24)
    assert found.summary.size == 120
    many = [value for value in found.summary.model_dump().values() if isinstance(value, tuple)]
    assert all(len(value) <= 10 for value in many)
