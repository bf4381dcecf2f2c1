"""Is it still the site that enrolled? Clones, changed data, lost and old states, runs of the same name."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federation import SITES, Answer
from local_post import AVG, LocalPost, local_run
from test_messages import sites_of

pytest.importorskip("pydantic", reason="the deployed form needs the extra fedstill[flower]")

from fedstill.core.errors import FedstillError, RunError
from fedstill.experiment.config import experiment
from fedstill.flower.audit import AuditLog
from fedstill.flower.enrolment import deployable
from fedstill.flower.messages import Enrol, Task, question
from fedstill.flower.serve import serve
from fedstill.flower.site import Site


class Swapped(LocalPost):
    """A post whose site-b is taken over by other processes: each takes its line with the site's own key."""

    def __init__(self, sites: Any, audit: AuditLog, takes_over: Callable[[int], Answer | None]) -> None:
        super().__init__(sites, audit)
        self.takes_over = takes_over
        self.since = 0

    def nodes(self) -> dict[int, tuple[str, str]]:
        return {node: (name, f"since {self.since}") for node, (name, _) in self.sites.items()}

    def send(self, heads: Any, body: bytes | None, kind: str, seconds: float, group: str = "") -> None:
        super().send(heads, body, kind, seconds, group)
        asked = question(next(iter(heads.values())))
        if isinstance(asked, Task):
            taken = self.takes_over(asked.round)
            if taken is not None:
                node = next(n for n, (name, _) in self.sites.items() if name == "site-b")
                self.sites[node] = ("site-b", taken)
                self.since += 1


def run_with(
    sites: dict[str, Answer], folder: Path, takes_over: Callable[[int], Answer | None], rounds: int
) -> list[dict[str, Any]]:
    post: Any = Swapped(sites, AuditLog(folder / "audit.jsonl"), takes_over)
    plan = deployable(experiment({**AVG, "clients": 3, "active": 1.0, "rounds": rounds, "quarantine": 10**6}))
    return list(serve(post, "r", plan.plain(), folder, None, 1.0, lambda news: None).rows)


def test_of_a_site_and_its_clone_one_is_refused(sites_data: dict[str, Path], tmp_path: Path) -> None:
    """Key and state are copied after round 1 and the copy takes the line; in round 3 the first one takes it back.

    The clone is as far as the run and cannot be told from the site. But after its turn in round 2 the run is ahead of
    the first one, which is named and left out: two processes never take turns as one site unnoticed.
    """
    sites = sites_of(sites_data, tmp_path)
    first = sites["site-b"]

    def takes_over(round: int) -> Answer | None:
        if round == 0:
            shutil.copytree(tmp_path / "site-b", tmp_path / "clone")
            return Site("site-b", str(sites_data["site-b"]), tmp_path / "clone").answer
        return first if round == 1 else None

    rows = run_with(sites, tmp_path / "runs", takes_over, 3)
    assert [sorted(row["missing_sites"]) for row in rows] == [[], [], ["site-b"]]
    assert "was it restored from a copy, or is another site running with its key?" in rows[2]["missing_sites"]["site-b"]


def test_a_clone_that_takes_the_line_in_the_middle_of_a_round_is_asked_who_it_is(
    sites_data: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """site-b falls silent in round 2, and a copy of it from before round 1 comes instead: it is not given the task."""
    monkeypatch.setattr("fedstill.flower.transport.LOOK", 0.05)
    sites = sites_of(sites_data, tmp_path)
    shutil.copytree(tmp_path / "site-b", tmp_path / "clone")
    first, asked_of_clone = sites["site-b"], []

    def clone(head: bytes, body: bytes | None) -> tuple[bytes, bytes | None]:
        asked_of_clone.append(question(head).kind)
        return Site("site-b", str(sites_data["site-b"]), tmp_path / "clone").answer(head, body)

    class Silenced(LocalPost):
        silent = False

        def nodes(self) -> dict[int, tuple[str, str]]:
            return {node: (name, f"since {self.silent}") for node, (name, _) in self.sites.items()}

        def send(self, heads: Any, body: bytes | None, kind: str, seconds: float, group: str = "") -> None:
            super().send(heads, body, kind, seconds, group)
            asked = question(next(iter(heads.values())))
            if isinstance(asked, Task) and asked.round == 1 and not self.silent:
                (node,) = (n for n, (name, _) in self.sites.items() if name == "site-b")
                self.drop(node)
                self.sites[node] = ("site-b", clone)
                self.silent = True

    post: Any = Silenced({**sites, "site-b": first}, AuditLog(tmp_path / "runs" / "audit.jsonl"))
    plan = deployable(experiment({**AVG, "clients": 3, "active": 1.0, "rounds": 2}))
    rows = list(serve(post, "r", plan.plain(), tmp_path / "runs", None, 1.0, lambda news: None).rows)
    assert [sorted(row["missing_sites"]) for row in rows] == [[], ["site-b"]]
    assert "older than the run" in rows[1]["missing_sites"]["site-b"]
    assert set(asked_of_clone) == {"enrol"}


def test_a_site_that_takes_its_time_to_say_who_it_is_is_back_in_the_next_round(
    sites_data: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub waits no moment for it, and hears it while it waits for the others: only the exam between is missed."""
    monkeypatch.setattr("fedstill.flower.transport.LOOK", 0.0)
    sites = sites_of(sites_data, tmp_path)
    post: Any = Swapped(
        sites, AuditLog(tmp_path / "audit.jsonl"), lambda round: sites["site-b"] if round == 0 else None
    )
    post.nodes = lambda: {n: (name, str(post.since * (name == "site-b"))) for n, (name, _) in post.sites.items()}
    plan = deployable(experiment({**AVG, "clients": 3, "active": 1.0, "rounds": 3}))
    rows = list(serve(post, "r", plan.plain(), tmp_path / "runs", None, 1.0, lambda news: None).rows)
    assert [row["missing_sites"] for row in rows] == [{}, {}, {}]
    assert [row["unexamined_sites"] for row in rows] == [["site-b"], [], []]


def test_a_site_whose_data_changed_is_refused(sites_data: dict[str, Path], tmp_path: Path) -> None:
    """One pixel of one sample changed while the site was down: same key, same state, other data."""
    data = tmp_path / "site-b.npz"
    with np.load(sites_data["site-b"]) as arrays:
        held = dict(arrays)
    np.savez(data, **held)
    sites = {**sites_of(sites_data, tmp_path), "site-b": Site("site-b", str(data), tmp_path / "own").answer}

    def takes_over(round: int) -> Answer | None:
        if round != 0:
            return None
        held["x_train"].reshape(-1)[0] += 1
        np.savez(data, **held)
        return Site("site-b", str(data), tmp_path / "own").answer

    rows = run_with(sites, tmp_path / "runs", takes_over, 2)
    assert [sorted(row["missing_sites"]) for row in rows] == [[], ["site-b"]]
    assert "are not those it enrolled with" in rows[1]["missing_sites"]["site-b"]


def test_a_run_of_an_old_name_starts_from_nothing(sites_data: dict[str, Path], tmp_path: Path) -> None:
    """The hub lost its folder and begins a run of the same name; the sites still have the states of the first.

    The run is another by its number, so nothing of the old one is used: both runs have the same first round.
    """
    stateful = {"method": {"name": "fedkf", "lr": 0.05, "epochs": 1, "noise": 8, "channels": 4}}
    sites = sites_of(sites_data, tmp_path)
    first = local_run(sites, tmp_path / "runs", rounds=2, **stateful)
    shutil.rmtree(tmp_path / "runs")
    second = local_run(sites, tmp_path / "runs", rounds=2, **stateful)
    for row, other in zip(first, second, strict=True):
        assert row["missing_sites"] == other["missing_sites"] == {}
        assert row["models"] == other["models"]
    assert len(list((tmp_path / SITES[0] / "runs").glob("r-*"))) == 2


def test_a_run_that_did_not_begin_has_the_same_number_when_it_is_tried_again(
    sites_data: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of three sites come, and a person there consented; at the next try, when all are there, they know the run.

    Another experiment under that name is another run. A hub that is killed while it writes the folder tries again, too.
    """
    runs, asked = tmp_path / "runs", []

    def noted(head: bytes, body: bytes | None) -> tuple[bytes, bytes | None]:
        if isinstance(question(head), Enrol):
            asked.append(question(head).run_id)
        return sites["site-a"](head, body)

    sites = sites_of(sites_data, tmp_path)
    two = {"site-a": noted, "site-b": sites["site-b"]}
    for seed in (4, 5, 4):
        with pytest.raises(RunError, match="only 2 of 3 sites came"):
            local_run(two, runs, clients=3, seed=seed)
    assert [asked.index(number) for number in asked] == [0, 1, 0]
    with monkeypatch.context() as here:
        here.setattr("fedstill.flower.serve.RunDir.create", lambda *_: {}["killed"])
        with pytest.raises(KeyError, match="killed"):
            local_run({**sites, "site-a": noted}, runs)
    assert [row["missing_sites"] for row in local_run({**sites, "site-a": noted}, runs)] == [{}, {}]
    assert set(asked[2:]) == {asked[0]}
    (runs / "r" / "experiment.json").unlink()
    with pytest.raises(RunError, match=r"lost its setting.json or experiment.json"):
        local_run(sites, runs)


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("setting.json", '"sites": ', '"sitez": '),
        ("setting.json", '"sizes": [96', '"sizes": [97'),
        ("setting.json", '"run_id": "', '"run_id": "x'),
        ("setting.json", "{", ""),
        ("sites.json", '"site-b": "', '"site-b": "0'),
        ("sites.json", '"data"', '"date"'),
        ("sites.json", "{", ""),
        ("metrics.jsonl", '"client_seconds"', '"client_secondz"'),
        ("metrics.jsonl", "{", ""),
        ("experiment.json", "{", ""),
    ],
)
def test_a_damaged_file_of_a_run_is_said_in_one_line(
    begun: Path, tmp_path: Path, file: str, old: str, new: str
) -> None:
    """No honest site is left out for what the hub's own disk did, and nothing goes on to other bits."""
    damaged = shutil.copytree(begun, tmp_path / "runs") / "r" / file
    before = damaged.read_text()
    assert old in before
    damaged.write_text(before.replace(old, new, 1))
    with pytest.raises(FedstillError, match="damaged") as said:
        local_run(dict.fromkeys(SITES, nobody), tmp_path / "runs", rounds=3)
    assert file in str(said.value)
    assert str(said.value).isprintable()


@pytest.fixture(scope="module")
def begun(sites_data: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs of a hub, of which one has done two rounds."""
    folder = tmp_path_factory.mktemp("begun")
    local_run(sites_of(sites_data, folder), folder / "runs", rounds=2)
    return folder / "runs"


def nobody(head: bytes, body: bytes | None) -> tuple[bytes, bytes | None]:
    """A site that is never to be asked."""
    raise AssertionError("a run with a damaged file asked a site")
