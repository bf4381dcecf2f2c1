"""Hundreds of kinds of bad message, both ways: each named, nobody's end."""

import json
from pathlib import Path
from typing import Any

import pytest
from federation import SITES
from local_post import AVG, LocalPost, local_run
from test_messages import ID, ROGUE_WORK, WRONG, sites_of, written
from test_policy import Hub

pytest.importorskip("pydantic", reason="the deployed form needs the extra fedstill[flower]")

from fedstill.core import record
from fedstill.core.errors import FedstillError
from fedstill.experiment.config import experiment
from fedstill.flower.enrolment import deployable
from fedstill.flower.messages import FORMAT, Enrol, ExamRequest, Models, Refusal, Task, answer, question
from fedstill.flower.policy import Policy
from fedstill.flower.roster import Roster
from fedstill.flower.site import Site

VALUES = [value if value != "x" * 10**7 else "x" * 10**5 for value in [None, *WRONG]]
EVERYTHING = {"turns_per_run": 10**9, "exams_per_run": 10**9, "exams_per_round": 10**9, "runs_per_day": 10**9}


def kinds(head: bytes) -> list[bytes]:
    """A head with each field wrong in each way, left out, and one too many; fields of nested parts too."""
    whole = json.loads(head)
    made = [{**whole, "more": 1}]
    for field, held in whole.items():
        made += [{**whole, field: value} for value in VALUES]
        made.append({key: value for key, value in whole.items() if key != field})
        if isinstance(held, dict):
            made += [{**whole, field: {**held, inner: value}} for inner in held for value in VALUES]
    return [written(message) for message in made]


def test_every_kind_of_bad_answer_is_named_by_the_hub(sites_data: dict[str, Path], tmp_path: Path) -> None:
    """One run of three honest sites and a rogue for every kind of bad work: the honest are in, the rest is named."""
    sites = sites_of(sites_data, tmp_path)
    proto = Site("proto", str(sites_data["site-a"]), tmp_path / "proto", policy=Policy(**EVERYTHING))
    example = written({"kind": "work", "run": "r", "run_id": ID, "round": 0, "client": 0, "site": "x", "seconds": 1.0})
    works: list[Any] = [*kinds(example), *ROGUE_WORK.values()]
    upload: list[bytes] = []

    def rogue(name: str, bad: Any) -> Any:
        def answered(head: bytes, body: bytes | None) -> tuple[bytes, bytes | None]:
            asked = question(head)
            if isinstance(asked, Enrol):
                return written({**json.loads(proto.answer(head, body)[0]), "site": name}), None
            if not isinstance(asked, Task):
                return Refusal(run="r", site=name, why="no exams here").dumps(), None
            own = {"run_id": asked.run_id, "client": asked.client, "site": name}
            if callable(bad):
                return bad(written({**json.loads(example), **own}), upload[0])  # type: ignore[no-any-return]
            spoilt, right = json.loads(bad), json.loads(example)
            return written({k: own.get(k, v) if v == right.get(k) else v for k, v in spoilt.items()}), upload[0]

        return answered

    def first(head: bytes, body: bytes | None) -> tuple[bytes, bytes | None]:
        said, sent = sites_of_a(head, body)
        if sent:
            upload.append(sent)
        return said, sent

    sites_of_a = sites["site-a"]
    rogues = {f"z{number:03d}": rogue(f"z{number:03d}", bad) for number, bad in enumerate(works)}
    (row,) = local_run({**sites, "site-a": first, **rogues}, tmp_path / "runs", rounds=1)
    named = row["missing_sites"]
    assert not set(SITES) & set(named)
    assert set(named) <= set(rogues)
    assert len(works) >= 170
    assert len(named) >= 0.85 * len(works)  # the rest are values within a field's bounds
    assert all("refused" in why and why.isprintable() for why in named.values())


def test_every_kind_of_bad_enrolment_is_named_by_the_hub(sites_data: dict[str, Path], tmp_path: Path) -> None:
    """Hundreds of rogues enrol beside three honest sites: all rogues that are not in bounds are refused by name."""
    sites = sites_of(sites_data, tmp_path)
    plan = deployable(experiment({**AVG, "clients": 3, "active": 1.0}))
    asked = Roster(LocalPost({}), "r", ID, json.dumps(plan.plain())).question  # type: ignore[arg-type]
    good = sites["site-a"](asked, None)[0]
    bad = kinds(good)
    rogues = {}
    for number, head in enumerate(bad):
        spoilt = json.loads(head)
        if spoilt.get("site") == "site-a":
            spoilt["site"] = f"z{number:03d}"
        rogues[f"z{number:03d}"] = lambda head, body, said=written(spoilt): (said, None)
    post: Any = LocalPost({**sites, **rogues})
    roster = Roster(post, "r", ID, json.dumps(plan.plain()))
    roster.call(seconds=60)
    assert set(SITES) <= set(roster.enrolled)
    assert len(bad) >= 200
    assert len(roster.refused) >= 0.85 * len(bad)
    assert all(len(why) < 500 and why.isprintable() for why in roster.refused.values())


def test_every_kind_of_bad_question_is_refused_by_a_site(sites_data: dict[str, Path], tmp_path: Path) -> None:
    """Each field of each question wrong in each way: a refusal of one line, or an answer where it is in bounds."""
    site = Site("site-a", str(sites_data["site-a"]), tmp_path, policy=Policy(**EVERYTHING))
    hub = Hub(site)
    common = {
        "run": "r",
        "run_id": ID,
        "round": 0,
        "client": hub.client,
        "setting": hub.setting.text(),
        "deadline": 9.0,
    }
    method = hub.plan.method
    down = record.dumps(method.download(hub.env.at(0), method.init_server(hub.env.at(0))))
    models = record.dumps(Models({"overall": hub.env.initial()}))
    enrol = Enrol(run="r", run_id=ID, format=FORMAT, experiment=json.dumps(hub.plan.plain()), signature="")
    refused = tried = 0
    for good, body in (
        (enrol, None), (Task(**common, kept=0), down), (ExamRequest(**common), models),
    ):  # fmt: skip
        assert not isinstance(answer(site.answer(good.dumps(), body)[0]), Refusal)
        for head in kinds(good.dumps()):
            found = answer(site.answer(head, body)[0])
            tried += 1
            if isinstance(found, Refusal):
                refused += 1
                assert found.why
                assert found.why.isprintable()
    assert tried >= 200
    assert refused >= 0.75 * tried
    assert not isinstance(hub.task(round=1), Refusal)


def test_settings_of_every_wrong_kind_are_refused_by_a_site(sites_data: dict[str, Path], tmp_path: Path) -> None:
    """The setting inside a task, each of its fields wrong in each way: a text, which the door does not read."""
    site = Site("site-a", str(sites_data["site-a"]), tmp_path, policy=Policy(**EVERYTHING))
    hub = Hub(site)
    refused = tried = 0
    for text in kinds(hub.setting.text().encode()):
        asked = Task(
            run="r", run_id=ID, round=0, client=hub.client, setting=text.decode(), kept=0, deadline=9.0,
        )  # fmt: skip
        try:
            found = answer(site.answer(asked.dumps(), None)[0])
        except FedstillError as error:  # pragma: no cover
            pytest.fail(f"an answer that is none: {error}")
        tried += 1
        refused += isinstance(found, Refusal)
    assert tried >= 200
    assert refused == tried  # even in bounds, another setting is another run's
