"""A hub that asks for more than it should: the site's policy, and the door on the site's side."""

import base64
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from local_post import AVG

from fedstill.core import record
from fedstill.core.errors import FedstillError, RunError, UsageError

pytest.importorskip("pydantic", reason="the deployed form needs the extra fedstill[flower]")

from fedstill.experiment.config import experiment
from fedstill.experiment.setting import Setting
from fedstill.flower import audit, signing
from fedstill.flower.consent import approve, waiting_experiments
from fedstill.flower.enrolment import deployable, settle
from fedstill.flower.keys import make_person_key
from fedstill.flower.messages import (
    FORMAT,
    Enrol,
    Enrolled,
    ExamRequest,
    Marks,
    Models,
    Refusal,
    Task,
    Work,
    answer,
)
from fedstill.flower.policy import Policy, read_policy
from fedstill.flower.runbook import RunBook, consented_part
from fedstill.flower.site import Site
from fedstill.flower.worker import Cancelled, Job, Worker

ID = "0123456789abcdef" * 2


def asked_to_enrol(run: str = "r", signature: str = "", **settings: Any) -> Enrol:
    plan = deployable(experiment({**AVG, "clients": 3, "active": 1.0, **settings}))
    return Enrol(run=run, run_id=ID, format=FORMAT, experiment=json.dumps(plan.plain()), signature=signature)


class Hub:
    """A hub that asks one site what it likes."""

    def __init__(self, site: Site, **settings: Any) -> None:
        self.site = site
        self.plan = deployable(experiment({**AVG, "clients": 3, "active": 1.0, **settings}))
        self.enrolled = self.ask(asked_to_enrol(**settings))
        assert isinstance(self.enrolled, Enrolled), self.enrolled
        twins = {name: self.enrolled.model_copy(update={"site": name}) for name in (site.name, "twin-1", "twin-2")}
        self.setting: Setting = settle("r", ID, self.plan, twins)
        self.client = self.setting.sites.index(site.name)
        self.env = self.setting.stage(_storage()).env

    def ask(self, asked: Enrol | Task | ExamRequest, body: bytes | None = None) -> Any:
        return answer(self.site.answer(asked.dumps(), body)[0])

    def task(self, setting: Setting | None = None, round: int = 0, **changes: Any) -> Any:
        text = (setting or self.setting).text()
        asked = Task(run="r", run_id=ID, round=round, client=self.client, setting=text, kept=0, deadline=60.0)
        method, env = self.plan.method, self.env.at(round, self.client)
        down = record.dumps(method.download(env, method.init_server(self.env.at(0))))
        return self.ask(asked.model_copy(update=changes), down)

    def exam(self, models: int = 1, round: int = 0, weights: Any = None) -> Any:
        asked = ExamRequest(
            run="r", run_id=ID, round=round, client=self.client, setting=self.setting.text(), deadline=60.0
        )
        tested = Models({f"m{i}": weights or self.env.initial() for i in range(models)})
        return self.ask(asked, record.dumps(tested))


def _storage() -> Any:
    from fedstill.core.shelf import Storage

    return Storage()


@pytest.fixture
def site(sites_data: dict[str, Path], tmp_path: Path) -> Callable[..., Site]:
    def made(**policy: Any) -> Site:
        return Site("site-a", str(sites_data["site-a"]), tmp_path / "state", policy=Policy(**policy))

    return made


def method(**settings: Any) -> dict[str, Any]:
    return {"name": "fedavg", "lr": 0.05, **settings}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"method": method(batch=1, local_steps=1)}, "batch = 1"),
        ({"method": method(batch=8, local_steps=1)}, "a turn on 8 samples"),
        ({"method": method(batch=95, epochs=1)}, "one sample would weigh 1/2 in a turn"),
        ({"method": {"name": "fedgen"}}, "fedavg only, not in fedgen"),
        ({"method": method(lr=5.0)}, "lr = 5.0"),
        ({"model": "os:abort"}, "code of the hub's choice"),
        ({"public": "/etc/passwd", "method": method()}, "--public"),
    ],
)
def test_an_experiment_against_the_policy_is_refused_at_enrolment(
    site: Callable[..., Site], settings: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of one for one step would give the hub that very image; so would 95 samples, and one."""
    monkeypatch.setattr("os.abort", lambda: pytest.fail("the site called what the hub named"))
    here = site(methods=("fedavg",), settings={"lr": {"most": 0.5}})
    found = answer(here.answer(asked_to_enrol(**settings).dumps())[0])
    assert isinstance(found, Refusal)
    assert words in found.why


def test_an_experiment_without_noise_is_refused_where_noise_is_asked_for() -> None:
    """ε ≤ 4 at δ ≤ 10⁻⁵: no noise, too little, a δ too large, and noise that the hub could compute are refused."""
    policy = Policy(epsilon=4.0)

    def refusal(*wrappers: dict[str, Any]) -> str:
        plan = experiment({**AVG, "clients": 3, "rounds": 2, "wrappers": list(wrappers)})
        return policy.refuses(plan) or ""

    good = {"name": "private-samples", "epsilon": 4.0, "keyed": False}
    assert "no private-samples" in refusal()
    assert "ε = 5.0" in refusal({**good, "epsilon": 5.0})
    assert "δ = 0.001" in refusal({**good, "delta": 1e-3})
    assert "the hub could take it away" in refusal({**good, "keyed": True})
    assert refusal(good) == ""


def test_code_that_the_hub_names_is_never_imported(site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.abort", lambda *_: pytest.fail("the site called what the hub named"))
    plan = json.loads(asked_to_enrol().experiment)
    for spoilt in (
        {**plan, "method": {"name": "os:abort"}},
        {**plan, "method": {**plan["method"], "gather": {"name": "os:abort"}}},
        {**plan, "models": ["os:abort"] * 3},
        {**plan, "partition": {"name": "os:abort"}},
    ):
        asked = asked_to_enrol().model_copy(update={"experiment": json.dumps(spoilt)})
        found = answer(site().answer(asked.dumps())[0])
        assert isinstance(found, Refusal)
        assert "os:abort" in found.why


def test_a_task_of_another_experiment_is_refused(site: Callable[..., Site]) -> None:
    """Enrolled for fedavg with a batch of 64; then the task says fedgen, a batch of 32, other data statistics."""
    hub = Hub(site())
    assert "another run's" in hub.task(replace(hub.setting, run_id="f" * 32)).why  # the very first one, too
    assert "there twice" in hub.task(replace(hub.setting, sites=("site-a",) * 3)).why  # three parties of one site
    assert not isinstance(hub.task(), Refusal)
    plan = dict(hub.setting.experiment)
    for spoilt in (
        replace(hub.setting, experiment={**plan, "method": {"name": "fedgen"}}),
        replace(hub.setting, experiment={**plan, "method": {**plan["method"], "batch": 32}}),
        replace(hub.setting, experiment={**plan, "local_test": 0.9}),
        replace(hub.setting, lowest=-1.0),
        replace(hub.setting, run_id="f" * 32),
        replace(hub.setting, sizes=(1, 1, 1)),
        replace(hub.setting, class_names=hub.setting.class_names[::-1]),
    ):
        found = hub.task(spoilt)
        assert isinstance(found, Refusal), spoilt
    assert isinstance(hub.task(run_id="f" * 32), Refusal)
    assert isinstance(hub.task(run="other"), Refusal)
    assert isinstance(hub.task(client=hub.client + 1), Refusal)
    assert not isinstance(hub.task(round=1), Refusal)


def test_a_round_of_too_few_parties_is_refused(site: Callable[..., Site]) -> None:
    """An average over one site is that site's own upload: at enrolment, and when a task says fewer than before."""
    found = answer(site(least_sites=4).answer(asked_to_enrol().dumps())[0])
    assert "rounds of 3 sites" in found.why  # type: ignore[union-attr]
    hub = Hub(site())
    assert isinstance(hub.task(), Work)
    alone = replace(hub.setting, experiment={**hub.setting.experiment, "active": 1 / 3})
    assert "rounds of 1 sites" in hub.task(alone).why


def test_secure_sums_count_those_without_whom_there_is_no_sum() -> None:
    """Ten clients a round: with a threshold of 0.6 six must stay, so a policy of 6 takes part, one of 7 does not."""
    plan = experiment({**AVG, "clients": 10, "active": 1.0, "wrappers": [{"name": "secure-sums", "threshold": 0.6}]})
    assert Policy(least_sites=6).refuses_turn(plan, 100) is None
    assert "rounds of 6 sites" in str(Policy(least_sites=7).refuses_turn(plan, 100))


def test_runs_of_a_day_are_bounded(site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is allowed in a run, a hub could have again in the next: two runs in a day, the third tomorrow."""
    here = site(runs_per_day=2)

    def enrolled(number: int) -> bool:
        asked = asked_to_enrol().model_copy(update={"run_id": f"{number:032x}"})
        return isinstance(answer(here.answer(asked.dumps())[0]), Enrolled)

    assert [enrolled(n) for n in (1, 2, 3, 1)] == [True, True, False, True]
    tomorrow = time.time() + 86401
    monkeypatch.setattr("fedstill.flower.runbook.time.time", lambda: tomorrow)
    assert enrolled(3)


def test_a_turn_that_is_ended_counts_too(site: Callable[..., Site]) -> None:
    """A turn may take 60 s: that much is entered before it begins, and what it took when it is done."""
    hub = Hub(site(run_seconds=200))
    (file,) = (hub.site.state / "runs").glob("*/run.json")
    hub.task()
    assert json.loads(file.read_text())["seconds"] != 60
    ended = RunBook(ID, "x").with_turn(Policy(), 60.0, 10)
    assert ended.seconds == 60
    assert ended.with_turn(Policy(turn_seconds=5), 60.0, 10).seconds == 65
    with pytest.raises(FedstillError, match="65 s here"):
        replace(ended, seconds=65.0).with_turn(Policy(run_seconds=64), 60.0, 10)


def test_exams_are_bounded_and_logged(site: Callable[..., Site], tmp_path: Path) -> None:
    """Sixteen models at once, three exams in a round, none in a round that is over; each is in the log."""
    hub = Hub(site(models_per_exam=16, exams_per_round=3, exams_per_run=5))
    assert "an exam of 17 models" in hub.exam(17).why
    assert [isinstance(hub.exam(2, round=4), Marks) for _ in range(4)] == [True, True, True, False]
    assert isinstance(hub.exam(2, round=3), Refusal)
    assert [isinstance(hub.exam(1, round=t), Marks) for t in (5, 6, 7)] == [True, True, False]
    events = [entry["event"] for entry in audit.entries(tmp_path / "state" / "audit.jsonl")]
    assert events.count("exam") == 5
    assert events.count("refused") == 4


def test_a_test_part_of_the_hubs_choice_says_nothing(site: Callable[..., Site]) -> None:
    """local_test = 0.02 leaves two test samples, of which an exam would tell: there is none."""
    hub = Hub(site(), local_test=0.02)
    assert hub.enrolled.tests == 0
    marks = hub.exam(1)
    assert (marks.total, marks.right) == (0, {})


def test_turns_and_bytes_of_a_run_are_bounded(site: Callable[..., Site]) -> None:
    """Two turns and no more; and with the first turn's bytes both ways, a second exceeds what a run may move."""
    hub = Hub(site(turns_per_run=2))
    assert [isinstance(hub.task(), Refusal) for _ in range(3)] == [False, False, True]
    (file,) = (hub.site.state / "runs").glob("*/run.json")
    moved = json.loads(file.read_text())["bytes"]
    hub.site.policy = Policy(run_bytes=moved + 1000)
    assert f"this run moved {moved} bytes here" in hub.task().why
    assert f"this run moved {moved} bytes here" in hub.exam().why


def test_questions_that_are_no_turns_are_bounded_too(site: Callable[..., Site], tmp_path: Path) -> None:
    """Each is a line in the site's log: with two turns a run, 108 enrolments are taken and no more."""
    here = site(turns_per_run=2)
    asked = asked_to_enrol().dumps()
    found = [isinstance(answer(here.answer(asked)[0]), Enrolled) for _ in range(110)]
    assert found == [True] * 108 + [False] * 2
    assert [e["event"] for e in audit.entries(tmp_path / "state" / "audit.jsonl")].count("enrolled") == 108
    with pytest.raises(FedstillError, match="108 questions in this run"):
        RunBook(ID, "x", asked=108).with_question(Policy(turns_per_run=2))


def test_data_that_are_not_read_in_time_are_a_line(
    sites_data: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedstill.flower.worker.STARTS", 0.0)
    worker = Worker(Job("site-a", str(sites_data["site-a"]), tmp_path / "state"), lambda text: None)
    with pytest.raises(RunError, match="data were not read within 0 s"):
        worker.start()
    assert worker.process is None


def site_turn() -> Any:
    from fedstill.core.turn import turn

    return turn


def test_a_large_download_and_a_large_upload_are_refused(
    site: Callable[..., Site], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a download nothing is read; an upload that is larger than its download (here by what was put in) stays."""
    hub = Hub(site(turn_bytes=1000))
    assert "a body of" in hub.task().why
    assert "this site's policy allows 1000" in hub.task().why
    hub.site.policy = Policy(turn_bytes=200_000)
    assert isinstance(hub.task(), Work)
    taken = site_turn()

    def swollen(*given: Any) -> tuple[Any, Any]:
        state, upload = taken(*given)
        return state, replace(upload, weights={**upload.weights, "more": torch.zeros(100_000)})

    monkeypatch.setattr("fedstill.flower.site.turn", swollen)
    assert "an upload of" in hub.task(round=1).why


def test_a_turn_of_too_few_steps_is_refused(site: Callable[..., Site]) -> None:
    """96 samples in batches of 64 are two steps in an epoch."""
    found = answer(site(least_steps=3).answer(asked_to_enrol(method=method(batch=64, epochs=1)).dumps())[0])
    assert "2 steps a turn: this site's policy asks for 3 at least" in found.why  # type: ignore[union-attr]
    assert isinstance(Hub(site(least_steps=2), method=method(batch=64, epochs=1)).enrolled, Enrolled)


DECLARING: list[dict[str, Any]] = [
    {"method": method()},
    {"method": method(gather={"name": "remember", "slots": "client"})},
    {"method": {"name": "fedgen", "epochs": 1}},
    {"method": method(), "wrappers": [{"name": "private-samples", "noise": 1.0}]},
    {"method": method(), "wrappers": [{"name": "quantise"}]},
]


@pytest.mark.parametrize("settings", DECLARING, ids=["plain", "slots", "fedgen", "noise", "compressed"])
def test_an_upload_is_what_was_declared(
    site: Callable[..., Site], tmp_path: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the site said at enrolment that it sends is what it sends, field by field; anything else stays here."""
    hub = Hub(site(), **settings)
    asked = Task(run="r", run_id=ID, round=0, client=hub.client, setting=hub.setting.text(), kept=0, deadline=60.0)
    down = hub.plan.method.download(hub.env.at(0, hub.client), hub.plan.method.init_server(hub.env.at(0)))
    head, sent = hub.site.answer(asked.dumps(), record.dumps(down))
    assert sent is not None, answer(head)
    fields = record.declared(type(record.loads(sent)))
    said = next(e["sends"] for e in audit.entries(tmp_path / "state" / "audit.jsonl") if e["event"] == "enrolled")
    assert [part.partition(" ")[0] for part in re.sub(r"\([^)]*\)", "", said).split(", ")] == list(fields)
    assert all(what in said for what in fields.values())
    monkeypatch.setattr("fedstill.flower.site.turn", lambda *_: (None, Models({})))
    assert "Models, which" in hub.task(round=1).why


def test_only_a_known_persons_experiment_is_taken(site: Callable[..., Site], tmp_path: Path) -> None:
    """Signed by alice, whose key the site has: taken. Unsigned, signed by mallory, or changed since: refused."""
    alice, public = make_person_key(tmp_path / "alice")
    mallory, _ = make_person_key(tmp_path / "mallory")
    here = site(signers=(public,))
    plan = consented_part(json.loads(asked_to_enrol().experiment))

    def asked(signature: str, **settings: Any) -> Any:
        return answer(here.answer(asked_to_enrol(signature=signature, **settings).dumps())[0])

    good = signing.sign(alice, "r", plan)
    assert isinstance(asked(good), Enrolled)
    assert "not signed" in asked("").why
    assert "nobody this site knows" in asked(signing.sign(mallory, "r", plan)).why
    assert "nobody this site knows" in asked(good, seed=5).why
    assert "nobody this site knows" in asked(signing.sign(alice, "other", plan)).why
    assert "cannot be read" in asked("~~~").why


def test_a_signature_begins_one_run_only(site: Callable[..., Site], tmp_path: Path) -> None:
    """A hub that kept alice's signature cannot begin her experiment anew, with nothing remembered of it."""
    alice, public = make_person_key(tmp_path / "alice")
    here = site(signers=(public,))
    signature = signing.sign(alice, "r", consented_part(json.loads(asked_to_enrol().experiment)))
    first = asked_to_enrol(signature=signature)
    assert isinstance(answer(here.answer(first.dumps())[0]), Enrolled)
    assert isinstance(answer(here.answer(first.dumps())[0]), Enrolled)  # the same run goes on
    again = first.model_copy(update={"run_id": "f" * 32})
    assert "was begun before" in answer(here.answer(again.dumps())[0]).why  # type: ignore[union-attr]
    other = signature[:-3] + chr(ord(signature[-3]) + 1) + "=="  # other letters for the same 64 bytes
    assert base64.b64decode(other, validate=True) == base64.b64decode(signature)
    again = again.model_copy(update={"signature": other})
    assert "was begun before" in answer(here.answer(again.dumps())[0]).why  # type: ignore[union-attr]
    shutil.rmtree(here.state / "runs")  # an old run's folder, that --keep-days deleted
    assert "was begun before" in answer(here.answer(first.dumps())[0]).why  # type: ignore[union-attr]


def test_an_experiment_waits_for_approval(site: Callable[..., Site]) -> None:
    here = site(approval=True)
    found = answer(here.answer(asked_to_enrol().dumps())[0])
    assert isinstance(found, Refusal)
    number = found.why.split()[1]
    with pytest.raises(UsageError, match="waiting: " + number):
        approve(here.state, "ffff")
    assert "approved for run r" in approve(here.state, number)
    assert isinstance(answer(here.answer(asked_to_enrol().dumps())[0]), Enrolled)
    assert isinstance(answer(here.answer(asked_to_enrol().dumps())[0]), Enrolled)  # the same run goes on
    assert isinstance(answer(here.answer(asked_to_enrol(seed=5).dumps())[0]), Refusal)


def test_an_approval_is_for_one_run_and_for_what_was_seen(site: Callable[..., Site], tmp_path: Path) -> None:
    """The same experiment under another number waits again; two whose numbers begin alike are not mixed up."""
    here = site(approval=True)
    first = asked_to_enrol()
    number = answer(here.answer(first.dumps())[0]).why.split()[1]  # type: ignore[union-attr]
    (waits,) = (here.state / "waiting").iterdir()
    assert f"{number}  " in waiting_experiments(here.state)
    alike = waits.with_name(number + "0" * (64 - len(number)) + ".json")
    alike.write_text(waits.read_text().replace('"seed"', '"sead"'))
    with pytest.raises(UsageError, match="no single experiment"):
        approve(here.state, number)
    alike.unlink()
    approve(here.state, number)
    assert isinstance(answer(here.answer(first.dumps())[0]), Enrolled)
    again = first.model_copy(update={"run_id": "f" * 32})
    assert "waits for approval" in answer(here.answer(again.dumps())[0]).why  # type: ignore[union-attr]
    approve(here.state, number)
    assert isinstance(answer(here.answer(again.dumps())[0]), Enrolled)


def test_a_reused_run_name_finds_no_old_state(site: Callable[..., Site]) -> None:
    """The same name under another number is another run: it starts from nothing."""
    hub = Hub(site())
    hub.task(round=4)
    assert hub.ask(asked_to_enrol()).turns == 5
    assert hub.ask(asked_to_enrol().model_copy(update={"run_id": "f" * 32})).turns == 0


def test_files_of_a_site_are_for_their_owner(site: Callable[..., Site]) -> None:
    before = os.umask(0o077)
    try:
        here = site()
        Hub(here).task()
    finally:
        os.umask(before)
    for path in here.state.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_checksum_of_data_is_the_sites_own_secret(sites_data: dict[str, Path], tmp_path: Path) -> None:
    """Two sites with the same data have different checksums: nobody can tell which data a checksum is of."""
    first, second = (Site(name, str(sites_data["site-a"]), tmp_path / name) for name in ("a", "b"))
    assert first.fingerprint != second.fingerprint
    assert first.fingerprint == Site("a", str(sites_data["site-a"]), tmp_path / "a").fingerprint


def test_a_turn_without_end_is_ended(sites_data: dict[str, Path], tmp_path: Path) -> None:
    """10^9 epochs: ended when the time is up, and when nobody wants it any more; the site answers the next question."""
    state = tmp_path / "state"
    worker = Worker(Job("site-a", str(sites_data["site-a"]), state), lambda text: None)
    worker.start()
    try:
        endless = {"method": {"name": "fedavg", "epochs": 10**9}}
        found = answer(worker.answer(asked_to_enrol(**endless).dumps(), None, 600, lambda: False)[0])
        assert isinstance(found, Enrolled)
        plan = deployable(experiment({**AVG, "clients": 3, "active": 1.0, **endless}))
        twins = {name: found.model_copy(update={"site": name}) for name in ("site-a", "twin-1", "twin-2")}
        setting = settle("r", ID, plan, twins)
        asked = Task(run="r", run_id=ID, round=0, client=0, setting=setting.text(), kept=0, deadline=60.0)
        env = setting.stage(_storage()).env
        down = record.dumps(plan.method.download(env.at(0, 0), plan.method.init_server(env.at(0))))
        with pytest.raises(RunError, match=r"took longer than 0\.5 s"):
            worker.answer(asked.dumps(), down, 0.5, lambda: False)
        calls = iter(range(10**6))
        with pytest.raises(Cancelled):
            worker.answer(asked.dumps(), down, 600, lambda: next(calls) > 3)
        with pytest.raises(RunError, match="worker died"):
            worker.answer(asked.dumps(), down, 600, lambda: os.kill(worker.process.pid, signal.SIGKILL) is not None)
        assert isinstance(answer(worker.answer(asked_to_enrol("next").dumps(), None, 600, lambda: False)[0]), Enrolled)
    finally:
        worker.stop()


def test_a_policy_file_is_read_and_explained(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text('methods = ["fedkf"]\nleast_batch = 16\nturn_seconds = 60\n[settings.lr]\nmost = 0.5\n')
    policy = read_policy(file)
    assert (policy.methods, policy.least_batch, policy.turn_seconds) == (("fedkf",), 16, 60)
    words = policy.explain()
    for piece in ("other than fedkf", "lr at most 0.5", "batches below 16", "longer than 60 s"):
        assert piece in words
    file.write_text("leest_batch = 16\n")
    with pytest.raises(UsageError, match=r"leest_batch.*known: methods"):
        read_policy(file)
    file.write_text('least_batch = "many"\n')
    with pytest.raises(UsageError, match=r"least_batch.*not 'many'"):
        read_policy(file)
    file.write_text('methods = ["fedkv"]\n')
    with pytest.raises(UsageError, match="did you mean fedkf"):
        read_policy(file)
    file.write_text("[settings.learning_rate]\nmost = 0.5\n")
    with pytest.raises(UsageError, match="no method has this setting"):
        read_policy(file)
    with pytest.raises(UsageError, match="no such file"):
        read_policy(tmp_path / "none.toml")


def test_a_log_that_was_changed_is_found_out(tmp_path: Path) -> None:
    """Three entries: a changed one, a removed one and two in another order are each named by their line."""
    file = tmp_path / "audit.jsonl"
    log = audit.AuditLog(file)
    for number in range(3):
        log.write("exam", round=number)
    assert audit.verify(file).lines == 3
    assert file.stat().st_mode & 0o077 == 0
    lines = file.read_text().splitlines(keepends=True)
    for spoilt, line in (
        ([lines[0], lines[1].replace('"round": 1', '"round": 7'), lines[2]], 2),
        ([lines[0], lines[2]], 2),
        ([lines[1], lines[0], lines[2]], 1),
        ([*lines, "noise\n"], 4),
    ):
        file.write_text("".join(spoilt))
        with pytest.raises(FedstillError, match=f"line {line} "):
            audit.verify(file)
    file.write_text("".join(lines) + lines[2][:30])  # cut off by a crash: the next entry stands on a line of its own
    audit.AuditLog(file).write("more", sites=["site"] * 50_000)  # longer than what is read of the end at first
    audit.AuditLog(file).write("more")
    assert (audit.verify(file).lines, audit.verify(file).cut) == (5, (4,))
    torn = tmp_path / "torn.jsonl"
    torn.write_text(lines[0][:30])
    audit.AuditLog(torn).write("more")
    assert (audit.verify(torn).lines, audit.verify(torn).cut) == (1, (1,))
    whole = file.read_text().splitlines(keepends=True)
    file.write_text("".join([*whole[:1], "noise\n", *whole[2:]]))  # in an entry's place it hides nothing
    with pytest.raises(FedstillError, match="line 3 was changed"):
        audit.verify(file)


def test_models_of_the_wrong_form_are_refused(site: Callable[..., Site]) -> None:
    """A model that is no state, one with other shapes, and one with text in it: each a line, never a crash."""
    hub = Hub(site())
    good = hub.env.initial()
    assert isinstance(hub.exam(weights={"x": torch.zeros(3)}), Refusal)
    assert isinstance(hub.exam(weights={name: w[:1] for name, w in good.items()}), Refusal)
    assert isinstance(hub.exam(weights=dict.fromkeys(good, "text")), Refusal)
    assert isinstance(hub.exam(weights=7), Refusal)
    assert isinstance(hub.exam(round=1), Marks)


def test_a_state_that_was_changed_is_not_used(sites_data: dict[str, Path], tmp_path: Path) -> None:
    """One bit of a generator flipped on the site's disk: the turn is refused, not trained to other bits."""
    kf = {"method": {"name": "fedkf", "lr": 0.05, "epochs": 1, "noise": 8, "channels": 4}}
    hub = Hub(Site("site-a", str(sites_data["site-a"]), tmp_path / "state"), **kf)
    assert not isinstance(hub.task(), Refusal)
    (file,) = (tmp_path / "state" / "runs").glob("*/*.safetensors")
    spoilt = bytearray(file.read_bytes())
    spoilt[-1] ^= 1
    file.write_bytes(bytes(spoilt))
    assert "changed or is damaged" in hub.task(round=1).why
