"""What a site was told when it enrolled is what it does: rounds, privacy over all runs, classes, memory."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_policy import ID, Hub, asked_to_enrol

from fedstill.core import record
from fedstill.core.errors import FedstillError

pytest.importorskip("pydantic", reason="the deployed form needs the extra fedstill[flower]")

from fedstill.experiment.config import experiment
from fedstill.flower import signing
from fedstill.flower.approvals import Approvals
from fedstill.flower.consent import approve
from fedstill.flower.enrolment import deployable, settle
from fedstill.flower.keys import make_person_key
from fedstill.flower.messages import Enrolled, Marks, Refusal, Task, Work, answer
from fedstill.flower.policy import Policy
from fedstill.flower.runbook import consented_part
from fedstill.flower.site import Site
from fedstill.flower.worker import Job, Worker

PRIVATE: dict[str, Any] = {"name": "private-samples", "epsilon": 3.0, "delta": 1e-3}


@pytest.fixture
def site(sites_data: dict[str, Path], tmp_path: Path) -> Callable[..., Site]:
    def made(**policy: Any) -> Site:
        return Site("site-a", str(sites_data["site-a"]), tmp_path / "state", policy=Policy(**policy))

    return made


def said(site: Site, **asked: Any) -> Any:
    return answer(site.answer(asked_to_enrol(**asked).dumps())[0])


def test_a_round_beyond_those_enrolled_for_is_refused(site: Callable[..., Site]) -> None:
    """Enrolled for three rounds: the fourth is neither trained nor examined, until the site is told of more."""
    hub = Hub(site(), rounds=3)
    assert isinstance(hub.task(round=2), Work)
    assert hub.task(round=3).why == "round 4: this site enrolled for 3 rounds"
    assert "enrolled for 3 rounds" in hub.exam(round=3).why
    assert isinstance(said(hub.site, rounds=4), Enrolled)
    assert isinstance(hub.task(round=3), Work)


def test_a_signature_is_good_for_the_rounds_that_were_signed(site: Callable[..., Site], tmp_path: Path) -> None:
    """alice signed three rounds of three sites; a hub that says thirty, or of two sites, has no signature of hers."""
    alice, public = make_person_key(tmp_path / "alice")
    here = site(signers=(public,))
    signature = signing.sign(alice, "r", consented_part(json.loads(asked_to_enrol(rounds=3).experiment)))
    assert isinstance(said(here, signature=signature, rounds=3), Enrolled)
    assert "nobody this site knows" in said(here, signature=signature, rounds=30).why
    assert "nobody this site knows" in said(here, signature=signature, rounds=3, clients=2).why
    assert "nobody this site knows" in said(here, signature=signature, rounds=3, active=0.7).why


def test_an_approval_is_good_for_the_rounds_that_were_approved(site: Callable[..., Site], tmp_path: Path) -> None:
    here = site(approval=True)
    approve(here.state, said(here, rounds=3).why.split()[1])
    assert isinstance(said(here, rounds=3), Enrolled)
    assert "waits for approval" in said(here, rounds=30).why
    hub = Approvals(tmp_path)
    plan = json.loads(asked_to_enrol(rounds=3).experiment)
    hub.approve("r", plan, "bob")
    assert not hub.missing("r", plan, "alice")
    assert hub.missing("r", {**plan, "rounds": 30}, "alice")
    assert hub.missing("r", {**plan, "clients": 2}, "alice")


def test_privacy_is_counted_over_all_runs(sites_data: dict[str, Path], tmp_path: Path) -> None:
    """ε = 3 a run, 7 over all runs: two runs have their turns, the third is refused, by a site started anew as well.

    A run that is only enrolled for costs nothing; the second turn of a run costs nothing more; and forgetting the runs'
    folders gives nothing back, neither to a new run nor to an old one, whose budget would begin anew.
    """
    import shutil

    state = tmp_path / "state"

    def opened() -> Site:
        policy = Policy(epsilon_all_runs=7.0, delta=1e-3)
        return Site("site-a", str(sites_data["site-a"]), state, policy=policy)

    def run(site: Site, number: int) -> Hub:
        return NumberedHub(site, f"{number:032x}", wrappers=[PRIVATE], rounds=2)

    idle = run(opened(), 9)
    for number in (1, 2):
        hub = run(opened(), number)
        assert isinstance(hub.task(round=0), Work)
        assert isinstance(hub.task(round=1), Work)
    words = "ε = 3: 2 runs have spent 6 here, and this site's policy allows 7 over all runs"
    assert idle.task().why == words
    shutil.rmtree(state / "runs")
    third = asked_to_enrol(wrappers=[PRIVATE]).model_copy(update={"run_id": "f" * 32})
    assert answer(opened().answer(third.dumps())[0]).why == words  # type: ignore[union-attr]
    first = asked_to_enrol(wrappers=[PRIVATE], rounds=2).model_copy(update={"run_id": f"{1:032x}"})
    assert "kept of it is gone" in answer(opened().answer(first.dumps())[0]).why  # type: ignore[union-attr]
    (state / "privacy.json").write_text("{")
    assert "book of ε is damaged" in answer(opened().answer(third.dumps())[0]).why  # type: ignore[union-attr]


class NumberedHub(Hub):
    """A hub whose run has a number of its own."""

    def __init__(self, site: Site, number: str, **settings: Any) -> None:
        self.number = number
        super().__init__(site, **settings)
        self.setting = settle("r", number, self.plan, dict.fromkeys(self.setting.sites, self.enrolled))

    def ask(self, asked: Any, body: bytes | None = None) -> Any:
        return super().ask(asked.model_copy(update={"run_id": self.number}), body)


@pytest.mark.parametrize("method", ["ccvr", "fedftg", "fedhe", "q-ffl", "feddistill-plus"])
def test_a_method_that_tells_of_samples_without_noise_is_refused_where_noise_is_asked_for(method: str) -> None:
    """Label counts, class means, mean logits of a class, a loss: no noise in training covers them."""
    plan = experiment({"method": method, "clients": 3, "wrappers": [{**PRIVATE, "keyed": False}]})
    for policy in (Policy(epsilon=3.0, delta=1e-3), Policy(epsilon_all_runs=9.0, delta=1e-3)):
        assert "tells of the samples without noise" in str(policy.refuses(plan))
    assert Policy().refuses(plan) is None


def test_every_promise_of_an_experiment_must_hold() -> None:
    """The noise is the inner wrapper's: a second one that promises more does not make up for it."""
    large, small = ({**PRIVATE, "epsilon": epsilon, "keyed": False} for epsilon in (1000.0, 3.0))
    for wrappers in ([large, small], [small, large]):
        try:
            plan = experiment({"method": "fedavg", "clients": 3, "wrappers": wrappers})
        except FedstillError:
            continue
        assert "ε = 1000" in str(Policy(epsilon=3.0, delta=1e-3).refuses(plan))


@pytest.mark.parametrize(("least", "shown"), [(1, True), (10, False)])
def test_counts_of_a_class_of_few_samples_are_not_told(site: Callable[..., Site], least: int, shown: bool) -> None:
    """24 test samples in ten classes, asked class by class: where ten are to hide one, nothing is told of any class."""
    hub = Hub(site(least_tests=least), per_class=True)
    marks = hub.exam()
    assert isinstance(marks, Marks)
    assert marks.total == 24
    assert sum(marks.classes[""]) == (24 if shown else 0)
    assert sum(marks.classes["m0"]) == (marks.right["m0"] if shown else 0)


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_a_turn_that_would_take_all_memory_is_refused(sites_data: dict[str, Path], tmp_path: Path) -> None:
    """A generator of 100,000 channels takes some 100 GB: one line, and the next question is answered.

    The worker may have 2 GiB here: the kernel holds it to that, and so the refusal is not only this machine's.
    """
    policy = Policy(memory_bytes=2 << 30)
    worker = Worker(Job("site-a", str(sites_data["site-a"]), tmp_path / "state", policy=policy), lambda text: None)
    worker.start()
    try:
        greedy = {"method": {"name": "fedkf", "channels": 100_000, "noise": 1000, "epochs": 1}}

        def ask(asked: Any, body: bytes | None = None) -> Any:
            return answer(worker.answer(asked.dumps(), body, 600, lambda: False)[0])

        found = ask(asked_to_enrol(**greedy))
        assert isinstance(found, Enrolled)
        plan = deployable(experiment({**json.loads(asked_to_enrol(**greedy).experiment)}))
        setting = settle("r", ID, plan, dict.fromkeys(("site-a", "twin-1", "twin-2"), found))
        task = Task(run="r", run_id=ID, round=0, client=0, setting=setting.text(), kept=0, deadline=60.0)
        small = deployable(experiment({**json.loads(asked_to_enrol().experiment)}))
        env = settle("r", ID, small, dict.fromkeys(("site-a", "twin-1", "twin-2"), found)).stage(_storage()).env
        down = record.dumps(small.method.download(env.at(0, 0), small.method.init_server(env.at(0))))
        refused = ask(task, down)
        assert isinstance(refused, Refusal)
        assert "memory" in refused.why.lower()
        limits = Path(f"/proc/{worker.process.pid}/limits").read_text()
        assert limits.split("Max data size")[1].split()[0] == str(2 << 30)
        assert isinstance(ask(asked_to_enrol("next")), Enrolled)
    finally:
        worker.stop()


def _storage() -> Any:
    from fedstill.core.shelf import Storage

    return Storage()
