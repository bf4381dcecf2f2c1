"""The door: messages of every kind, spoilt in every way, on both sides."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from federation import LONG, SITES, Answer
from local_post import AVG, LocalPost, local_run

from fedstill.core import record
from fedstill.core.errors import FedstillError

pytest.importorskip("pydantic", reason="the deployed form needs the extra fedstill[flower]")

from fedstill.flower.messages import (
    LARGEST_HEAD,
    Enrolled,
    ExamRequest,
    Marks,
    Refusal,
    Task,
    Work,
    answer,
    question,
    readable,
)
from fedstill.flower.policy import Policy
from fedstill.flower.roster import Roster
from fedstill.flower.site import Site

ID = "0123456789abcdef" * 2
SUMMARY = {
    "size": 120, "kind": {"name": "image", "shape": [1, 8, 8], "mean": [0.3], "std": [0.4]}, "dtype": "uint8",
    "measured_mean": [0.3], "measured_std": [0.4], "counts": [120], "lowest": 0.0,
    "class_names": [str(c) for c in range(10)],
}  # fmt: skip
GOOD: dict[str, dict[str, Any]] = {
    "enrolled": {
        "kind": "enrolled", "run": "r", "run_id": ID, "site": "site-a", "samples": 96, "tests": 24, "model": "auto",
        "summary": SUMMARY, "public": "", "data": "ab", "turns": 0,
    },
    "work": {
        "kind": "work", "run": "r", "run_id": ID, "round": 0, "client": 0, "site": "site-a", "seconds": 0.5,
    },
    "marks": {
        "kind": "marks", "run": "r", "run_id": ID, "round": 0, "client": 0, "site": "site-a", "total": 24,
        "right": {"global": 20}, "own": None, "classes": {},
    },
    "refusal": {"kind": "refusal", "run": "r", "site": "site-a", "why": "no"},
    "enrol": {"kind": "enrol", "run": "r", "run_id": ID, "format": 2, "experiment": "{}", "signature": ""},
    "task": {
        "kind": "task", "run": "r", "run_id": ID, "round": 0, "client": 0, "setting": "{}", "kept": 0, "deadline": 9.0,
    },
    "exam": {"kind": "exam", "run": "r", "run_id": ID, "round": 0, "client": 0, "setting": "{}", "deadline": 9.0},
    "keys": {"kind": "keys", "run": "r", "run_id": ID, "round": 0, "client": 0, "setting": "{}", "deadline": 9.0},
    "shares": {
        "kind": "shares", "run": "r", "run_id": ID, "round": 0, "client": 0, "setting": "{}", "deadline": 9.0,
        "keys": [[0, "ab" * 32, "cd" * 32, "ef" * 100]],
    },
    "masked": {
        "kind": "masked", "run": "r", "run_id": ID, "round": 0, "client": 0, "setting": "{}", "kept": 0,
        "deadline": 9.0, "letters": [[1, "ef" * 93]],
    },
    "unmask": {
        "kind": "unmask", "run": "r", "run_id": ID, "round": 0, "client": 0, "setting": "{}", "deadline": 9.0,
        "arrived": [0, 1], "kept": 0,
    },
    "keys given": {
        "kind": "keys given", "run": "r", "run_id": ID, "round": 0, "client": 0, "site": "site-a",
        "masking": "ab" * 32, "sealing": "cd" * 32, "signature": "",
    },
    "shares given": {
        "kind": "shares given", "run": "r", "run_id": ID, "round": 0, "client": 0, "site": "site-a",
        "letters": [[1, "ef" * 93]],
    },
    "unmask given": {
        "kind": "unmask given", "run": "r", "run_id": ID, "round": 0, "client": 0, "site": "site-a",
        "seeds": [[0, 1, "ab" * 32]], "masks": [],
    },
}  # fmt: skip
QUESTIONS = ("enrol", "task", "exam", "keys", "shares", "masked", "unmask")
DOOR = {kind: question if kind in QUESTIONS else answer for kind in GOOD}
WRONG: list[Any] = [
    True, -1, 10**10, 1.5, float("nan"), float("inf"), 1e308, "", "a\nb", "../etc", "os:abort", "x" * 10**7, [], [[]],
    {}, {"a": {"b": {}}}, ["\u0000"], [1e308] * 3, {"": -1},
]  # fmt: skip


def refusal(door: Any, data: bytes) -> str | None:
    """Why these bytes are not let in; None where they are. Anything but a `FedstillError` ends the test."""
    try:
        door(data)
    except FedstillError as error:
        return str(error)
    return None


def written(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode()


@pytest.mark.parametrize("kind", GOOD)
def test_a_good_message_passes_and_is_written_the_same(kind: str) -> None:
    found = DOOR[kind](written(GOOD[kind]))
    assert json.loads(found.dumps()) == GOOD[kind]


@pytest.mark.parametrize("kind", GOOD)
def test_a_field_of_a_wrong_type_is_named(kind: str) -> None:
    """Each field of each message with each wrong value: named in one short line, or within the field's own bounds."""
    door, refused, tried = DOOR[kind], 0, 0
    for field in GOOD[kind]:
        for value in [None, *WRONG]:
            tried += 1
            why = refusal(door, written({**GOOD[kind], field: value}))
            refused += why is not None
            assert why is None or (len(why) <= 300 and why.isprintable())
        with pytest.raises(FedstillError, match=field if field != "kind" else "kind|tag"):
            door(written({key: value for key, value in GOOD[kind].items() if key != field}))
    assert refused > 0.75 * tried  # a text may be empty, a number 10^10 seconds no: what is left is in bounds
    with pytest.raises(FedstillError, match="Extra inputs"):
        door(written({**GOOD[kind], "more": 1}))


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("marks", {"right": {"global": 25}}),
        ("marks", {"own": 25}),
        ("marks", {"classes": {"": [12, 12], "global": [13, 1]}}),
        ("marks", {"classes": {"": [12, 12], "global": [1, 1, 1]}}),
        ("marks", {"classes": {"global": [1, 1]}}),
        ("marks", {"total": "24"}),
        ("work", {"seconds": "1"}),
        ("work", {"seconds": -1}),
        ("work", {"round": 0.5}),
        ("enrolled", {"samples": 121}),
        ("enrolled", {"samples": 0}),
        ("enrolled", {"tests": 10**12}),
        ("enrolled", {"model": "os system"}),
        ("enrolled", {"summary": {**SUMMARY, "class_names": ["300000000"]}}),
        ("enrolled", {"summary": {**SUMMARY, "class_names": ["1", "1"]}}),
        ("enrolled", {"summary": {**SUMMARY, "class_names": [str(c) for c in range(20_000)]}}),
        ("enrolled", {"summary": {**SUMMARY, "measured_mean": [1e308]}}),
        ("enrolled", {"summary": {**SUMMARY, "kind": {"name": "os:abort"}}}),
        ("enrolled", {"summary": {**SUMMARY, "kind": {"name": "image", "shape": [[[[1]]]]}}}),
        ("refusal", {"why": "x" * 1000}),
    ],
)
def test_what_cannot_be_true_is_refused(kind: str, changes: dict[str, Any]) -> None:
    with pytest.raises(FedstillError):
        DOOR[kind](written({**GOOD[kind], **changes}))


@pytest.mark.parametrize(
    "noise",
    [b"", b"\xff\xfe", b"null", b"[]", b"{", b'"x"', b"[" * 10**5, b"9" * 10**5, b'{"kind": "work"} x', b"\0" * 1000,
     b'{"kind": "work", "round": ' + b"9" * 5000 + b"}", b" " * (5 << 20), b'{"kind": ["work"]}',
     b'{"kind": "os:abort"}'],
)  # fmt: skip
def test_bytes_that_are_no_message_are_refused_on_both_sides(noise: bytes) -> None:
    for door in (question, answer):
        with pytest.raises(FedstillError):
            door(noise)


@pytest.mark.parametrize("count", [2_000, pytest.param(100_000, marks=LONG)])
def test_random_changes_end_in_a_message_or_in_a_line(count: int) -> None:
    """Bytes of good messages changed, cut, doubled and joined at random: the door gives a message or says why not."""
    stream = random.Random(7)
    good = [written(message) for message in GOOD.values()]
    passed = 0
    for _ in range(count):
        data = bytearray(stream.choice(good))
        for _ in range(stream.randint(1, 4)):
            at = stream.randrange(len(data) + 1)
            match stream.randrange(5):
                case 0:
                    data[at : at + 1] = bytes([stream.randrange(256)])
                case 1:
                    del data[at : at + stream.randint(1, 40)]
                case 2:
                    data[at:at] = stream.choice(good)[: stream.randint(1, 60)]
                case 3:
                    data[at:at] = str(stream.choice([10**30, -1, 1e300, "NaN", '"', "{}", "[]", "null"])).encode()
                case _:
                    data[at:at] = bytes(stream.randrange(256) for _ in range(8))
        for door in (question, answer):
            why = refusal(door, bytes(data))
            passed += why is None
            assert why is None or why.isprintable()
    assert 0 < passed < count


def test_a_head_of_many_bytes_is_not_read() -> None:
    """Each is a good message, but for the blanks behind it."""
    for read, kind in ((answer, "work"), (question, "task")):
        read(written(GOOD[kind]) + b" " * 1000)
        with pytest.raises(FedstillError, match="a head of"):
            read(written(GOOD[kind]) + b" " * LARGEST_HEAD)


def test_a_strangers_words_obey_no_terminal() -> None:
    assert readable("a\x1b]0;title\x07\r\n\u202eb") == "a?]0;title????b"
    assert len(readable("x" * 5000)) == 300


# What a rogue site sends instead of its work, made from what an honest one would send.
ROGUE_WORK: dict[str, Any] = {
    "no record": lambda head, body: (head, b"no record at all"),
    "no body": lambda head, body: (head, None),
    "a number": lambda head, body: (head, record.dumps(7)),
    "a tensor": lambda head, body: (head, record.dumps(record.loads(body).weights)),
    "another record": lambda head, body: (head, record.dumps(_models())),
    "weights that are text": lambda head, body: (head, _spec(body, lambda w: dict.fromkeys(w, "x"))),
    "weights that are numbers": lambda head, body: (head, _spec(body, lambda w: dict.fromkeys(w, 1))),
    "weights nested": lambda head, body: (head, _spec(body, lambda w: {k: {"map": {}} for k in w})),
    "weights that are None": lambda head, body: (head, _spec(body, lambda w: None)),
    "one weight more": lambda head, body: (head, _spec(body, lambda w: {**w, "more": next(iter(w.values()))})),
    "one weight less": lambda head, body: (head, _spec(body, lambda w: dict(list(w.items())[1:]))),
    "an unknown record": lambda head, body: (head, body.replace(_type_name(body), _type_name(body)[::-1])),
    "marks": lambda head, body: (written({**GOOD["marks"], **_of(head)}), None),
    "an enrolment": lambda head, body: (written({**GOOD["enrolled"], "run_id": json.loads(head)["run_id"]}), body),
    "another run": lambda head, body: (_changed(head, run="another"), body),
    "another run's number": lambda head, body: (_changed(head, run_id=ID), body),
    "another round": lambda head, body: (_changed(head, round=99), body),
    "another client": lambda head, body: (_changed(head, client=1), body),
    "another site": lambda head, body: (_changed(head, site="site-b"), body),
    "seconds as text": lambda head, body: (_changed(head, seconds="1"), body),
    "no seconds": lambda head, body: (_changed(head, seconds=None), body),
    "a field more": lambda head, body: (_changed(head, more=1), body),
    "deep": lambda head, body: (b"[" * 10**6, body),
    "noise": lambda head, body: (bytes(range(256)), body),
    "enormous weights": lambda head, body: (head, _scaled(body, 1e12)),
    "large weights": lambda head, body: (head, _scaled(body, 1e5)),
    "not finite": lambda head, body: (head, _scaled(body, float("nan"))),
    "too many bytes": lambda head, body: (head, b"\0" * (20 << 20)),
}


def _of(head: bytes) -> dict[str, Any]:
    return {
        key: value for key, value in json.loads(head).items() if key in ("run", "run_id", "round", "client", "site")
    }


def _changed(head: bytes, **changes: Any) -> bytes:
    return written({**json.loads(head), **changes})


def _type_name(body: bytes) -> bytes:
    return type(record.loads(body)).__name__.encode()


def _models() -> Any:
    from fedstill.flower.messages import Models

    return Models({})


def _spec(body: bytes, change: Any) -> bytes:
    """An upload whose specification was changed: its tensors stay."""
    import struct

    length = struct.unpack("<Q", body[:8])[0]
    outer = json.loads(body[8 : 8 + length])
    spec = json.loads(outer["__metadata__"]["spec"])
    fields = spec["fields"]
    fields["weights"]["map"] = change(fields["weights"]["map"])
    if fields["weights"]["map"] is None:
        fields["weights"] = None
    outer["__metadata__"]["spec"] = json.dumps(spec)
    text = json.dumps(outer).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + body[8 + length :]


def _scaled(body: bytes, times: float) -> bytes:
    from dataclasses import replace

    upload = record.loads(body)
    weights = {name: w * times if w.is_floating_point() else w for name, w in upload.weights.items()}
    return record.dumps(replace(upload, weights=weights))


def sites_of(sites_data: dict[str, Path], folder: Path) -> dict[str, Answer]:
    return {name: Site(name, str(sites_data[name]), folder / name).answer for name in SITES}


def test_every_kind_of_bad_work_is_named_and_the_run_goes_on(sites_data: dict[str, Path], tmp_path: Path) -> None:
    """One rogue among three honest sites, one bad answer a round; the honest three are in every round."""
    honest = sites_of(sites_data, tmp_path)
    inner = Site("rogue", str(sites_data["site-a"]), tmp_path / "rogue")
    kinds = list(ROGUE_WORK)

    def rogue(head: bytes, body: bytes | None) -> tuple[bytes, bytes | None]:
        said, sent = inner.answer(head, body)
        asked = question(head)
        return ROGUE_WORK[kinds[asked.round]](said, sent) if isinstance(asked, Task) else (said, sent)

    rows = local_run(
        {**honest, "rogue": rogue}, tmp_path / "runs", rounds=len(kinds), quarantine=10**6, evaluate_every=len(kinds)
    )
    for kind, row in zip(kinds, rows, strict=True):
        assert list(row["missing_sites"]) == ["rogue"], kind
        assert "refused" in row["missing_sites"]["rogue"], (kind, row["missing_sites"])
        assert sorted(row["client_seconds"]) == ["1", "2", "3"], kind  # rogue sorts first
    assert rows[-1]["models"]["overall"]["amp"] > 0.2  # ten classes: it has learnt, whatever the rogue sent


def test_a_site_that_fails_again_and_again_is_left_out(sites_data: dict[str, Path], tmp_path: Path) -> None:
    """One failure, a good turn, and two failures in a row: only then it is asked no more, and that is said."""
    inner = Site("rogue", str(sites_data["site-a"]), tmp_path / "rogue")
    asked_in: list[int] = []

    def rogue(head: bytes, body: bytes | None) -> tuple[bytes, bytes | None]:
        asked = question(head)
        if isinstance(asked, Task):
            asked_in.append(asked.round)
            if asked.round != 1:
                return written(GOOD["work"]), b"noise"
        return inner.answer(head, body)

    news: list[Any] = []
    rows = local_run(
        {**sites_of(sites_data, tmp_path), "rogue": rogue}, tmp_path / "runs", news, rounds=6, quarantine=2
    )
    assert asked_in == [0, 1, 2, 3]
    assert [list(row["missing_sites"]) for row in rows] == [["rogue"], [], *[["rogue"]] * 4]
    assert "in quarantine after 2 failures" in rows[-1]["missing_sites"]["rogue"]
    assert "site rogue is in quarantine after 2 failures" in " ".join(item.get("note", "") for item in news)


ROGUE_MARKS: dict[str, Any] = {
    "more right than there are": {"right": {"overall": 10**6, "aggregated": 1}},
    "another total": {"total": 10**6},
    "no models": {"right": {}},
    "another model": {"right": {"overall": 1, "aggregated": 1, "mine": 1}},
    "text": {"total": "24"},
    "nested": {"right": {"overall": {"overall": 1}}},
    "another site's": {"site": "site-b"},
}


def test_bad_marks_are_left_out_and_named(sites_data: dict[str, Path], tmp_path: Path) -> None:
    honest = sites_of(sites_data, tmp_path)
    inner = Site("rogue", str(sites_data["site-a"]), tmp_path / "rogue")
    kinds = list(ROGUE_MARKS)

    def rogue(head: bytes, body: bytes | None) -> tuple[bytes, bytes | None]:
        said, sent = inner.answer(head, body)
        found = answer(said)
        return (_changed(said, **ROGUE_MARKS[kinds[found.round]]), None) if isinstance(found, Marks) else (said, sent)

    rows = local_run({**honest, "rogue": rogue}, tmp_path / "runs", rounds=len(kinds), quarantine=10**6)
    for kind, row in zip(kinds, rows, strict=True):
        assert row["unexamined_sites"] == ["rogue"], kind
        assert row["models"]["overall"]["accuracy_per_client"][0] is None
        assert 0 <= row["models"]["overall"]["amp"] <= 1


def test_a_site_that_gives_no_marks_is_not_waited_for_in_every_round(
    sites_data: dict[str, Path], tmp_path: Path
) -> None:
    """It works, but leaves exams unanswered, each time to the deadline: after two of them it is examined no more."""
    honest = sites_of(sites_data, tmp_path)
    inner = Site("rogue", str(sites_data["site-a"]), tmp_path / "rogue")
    exams: list[int] = []

    def rogue(head: bytes, body: bytes | None) -> Any:
        asked = question(head)
        if isinstance(asked, ExamRequest):
            exams.append(asked.round)
            return FedstillError("no answer within 600 s")
        return inner.answer(head, body)

    news: list[Any] = []
    rows = local_run({**honest, "rogue": rogue}, tmp_path / "runs", news, rounds=4, quarantine=2)
    assert exams == [0, 1]
    assert [row["unexamined_sites"] for row in rows] == [["rogue"]] * 4
    assert [row["missing_sites"] for row in rows] == [{}] * 4
    assert "site rogue is examined no more after 2 exams without marks" in " ".join(n.get("note", "") for n in news)


@pytest.mark.parametrize("claimed", [96, 10**9])
def test_label_counts_give_a_site_no_more_say_than_its_share(
    sites_data: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, claimed: int
) -> None:
    """FedGen weighs sites class by class, as they count. Three sites of 96 samples, and a fourth that says 10^9 of them
    are of class 0: with 96 enrolled it is refused; with 10^9 enrolled it counts as 288 here as well, rounded up.
    """
    from dataclasses import replace

    import fedstill.methods.fedgen as fedgen

    sites = sites_of(sites_data, tmp_path)
    inner = Site("z-rogue", str(sites_data["site-a"]), tmp_path / "rogue")
    honest, seen = sites["site-a"], list[Any]()

    def first(head: bytes, body: bytes | None) -> tuple[bytes, bytes | None]:
        said, sent = honest(head, body)
        seen.extend([record.loads(sent)] if sent else [])
        return said, sent

    def rogue(head: bytes, body: bytes | None) -> tuple[bytes, bytes | None]:
        asked = question(head)
        if isinstance(asked, Task):
            named = {"run": asked.run, "run_id": asked.run_id, "round": 0, "client": asked.client, "site": "z-rogue"}
            labels = torch.zeros_like(seen[0].labels)
            labels[0] = 10**9
            return Work(**named, seconds=1.0).dumps(), record.dumps(replace(seen[0], labels=labels))
        said, sent = inner.answer(head, body)
        if isinstance(answer(said), Enrolled):
            said = _summary(_changed(said, samples=claimed), size=max(claimed, 120), counts=[max(claimed, 120)])
        return said, sent

    counted: list[Any] = []
    counts_of = fedgen.counts_of
    monkeypatch.setattr(fedgen, "counts_of", lambda uploads: counted.append(counts_of(uploads)) or counted[-1])
    method = {"name": "fedgen", "epochs": 1, "generator_steps": 1}
    (row,) = local_run({**sites, "site-a": first, "z-rogue": rogue}, tmp_path / "runs", rounds=1, method=method)
    refused = {"z-rogue": "refused: label counts of 1e+09 samples, enrolled were 96"}
    assert row["missing_sites"] == (refused if claimed == 96 else {})
    assert counted[0].sum(1).tolist() == [96, 96, 96, *([] if claimed == 96 else [288])]


ROGUE_ENROLMENTS: dict[str, Any] = {
    "os-abort": lambda head: _changed(head, model="os:abort"),
    "other-name": lambda head: _changed(head, site="site-a"),
    "other-run": lambda head: _changed(head, run_id=ID),
    "class-number": lambda head: _summary(head, class_names=["0", "300000000"]),
    "deep-summary": lambda head: _changed(head, summary={"size": [[[[[[1]]]]]]}),
    "mean": lambda head: _summary(head, measured_mean=[1e308]),
    "shape": lambda head: _summary(head, kind={**json.loads(head)["summary"]["kind"], "shape": [1, 10**5, 10**5]}),
    "kind": lambda head: _summary(head, kind={"name": "os:abort"}),
    "many-tests": lambda head: head.replace(b'"tests":24', b'"tests":1' + b"0" * 400),
    "digits": lambda head: head.replace(b'"samples":96', b'"samples":' + b"9" * 5000),
    "noise": lambda head: b"\xff" * 100,
    "work": lambda head: written({**GOOD["work"], "site": "work"}),
    "other-form": lambda head: _summary(head, kind={**json.loads(head)["summary"]["kind"], "shape": [1, 9, 9]}),
    "refusing": lambda head: Refusal(run="r", site="refusing", why="[/b] no").dumps(),
}


def _summary(head: bytes, **changes: Any) -> bytes:
    return _changed(head, summary={**json.loads(head)["summary"], **changes})


def test_bad_enrolments_are_refused_by_name(
    sites_data: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rogues and three honest sites enrol at once: the three agree on a run, and nothing is imported."""
    from fedstill.experiment.config import experiment
    from fedstill.flower.enrolment import deployable
    from fedstill.flower.serve import _enrolled

    monkeypatch.setattr("os.abort", lambda: pytest.fail("the hub called what a site named"))
    sites = sites_of(sites_data, tmp_path)
    for name, change in ROGUE_ENROLMENTS.items():
        inner = Site(name, str(sites_data["site-a"]), tmp_path / name)
        sites[name] = lambda head, body, inner=inner, change=change: (change(inner.answer(head, body)[0]), None)  # type: ignore[misc]
    plan = deployable(experiment({**AVG, "clients": 3, "active": 1.0}))
    post: Any = LocalPost(sites)
    roster = Roster(post, "r", "f" * 32, json.dumps(plan.plain()))
    enrolled = _enrolled(roster, plan, None, 5.0, lambda news: None)
    assert sorted(enrolled) == sorted(SITES)
    assert sorted(roster.refused) == sorted(ROGUE_ENROLMENTS)
    assert "os:abort" in roster.refused["os-abort"]


def test_a_site_that_claims_all_samples_is_held_down(sites_data: dict[str, Path], tmp_path: Path) -> None:
    """96, 96, 96 and a claim of 10^9: with a share of 1/2 the claim counts 288, as many as the others together."""
    honest = sites_of(sites_data, tmp_path)
    inner = Site("rogue", str(sites_data["site-a"]), tmp_path / "rogue")

    def rogue(head: bytes, body: bytes | None) -> tuple[bytes, bytes | None]:
        said, sent = inner.answer(head, body)
        found = answer(said)
        if isinstance(found, Enrolled):
            said = _summary(_changed(said, samples=10**9), size=10**9, counts=[10**9])
        return said, sent

    news: list[Any] = []
    local_run({**honest, "rogue": rogue}, tmp_path / "runs", news, rounds=1)
    notes = " ".join(item.get("note", "") for item in news)
    assert "rogue counts as 288 samples instead of 1000000000" in notes


def test_a_site_that_was_changed_is_not_taken_back(sites_data: dict[str, Path], tmp_path: Path) -> None:
    """After two rounds: other data, a lost state folder and an old copy of it are named, and left out."""
    import shutil

    local_run(sites_of(sites_data, tmp_path), tmp_path / "runs", rounds=1)
    shutil.copytree(tmp_path / "site-c", tmp_path / "copy")
    local_run(sites_of(sites_data, tmp_path), tmp_path / "runs", rounds=2)
    shutil.rmtree(tmp_path / "site-b")
    shutil.rmtree(tmp_path / "site-c")
    shutil.copytree(tmp_path / "copy", tmp_path / "site-c")
    news: list[Any] = []
    rows = local_run(sites_of(sites_data, tmp_path), tmp_path / "runs", news, rounds=3)
    assert sorted(rows[-1]["missing_sites"]) == ["site-b", "site-c"]
    assert "are not those it enrolled with" in rows[-1]["missing_sites"]["site-b"]
    assert "older than the run" in rows[-1]["missing_sites"]["site-c"]
    assert list(rows[-1]["client_seconds"]) == ["0"]


def test_classes_are_counted_without_a_site_that_has_too_few_tests(sites_data: dict[str, Path], tmp_path: Path) -> None:
    """site-c's policy wants 30 test samples to hide one, and it has 24: the classes' shares are those of the others."""
    marks: list[Marks] = []

    def marking(name: str) -> Answer:
        policy = Policy(least_tests=30 if name == "site-c" else 1)
        site = Site(name, str(sites_data[name]), tmp_path / name, policy=policy)

        def answered(head: bytes, body: bytes | None) -> tuple[bytes, bytes | None]:
            said, sent = site.answer(head, body)
            found = answer(said)
            if isinstance(found, Marks) and found.total:
                marks.append(found)
            return said, sent

        return answered

    (row,) = local_run({name: marking(name) for name in SITES}, tmp_path / "runs", rounds=1, per_class=True)
    assert [m.site for m in marks] == ["site-a", "site-b"]
    for name, scores in row["models"].items():
        counts = [[sum(m.classes[which][c] for m in marks) for c in range(10)] for which in (name, "")]
        assert sum(counts[1]) == 48
        assert scores["per_class"] == [hits / there for hits, there in zip(*counts, strict=True)]
        assert scores["accuracy_per_client"][2] is None


def test_a_run_that_lost_its_patience_ends_at_once_when_it_is_deployed_again(
    sites_data: dict[str, Path], tmp_path: Path
) -> None:
    """A rate of 1e-9 teaches nothing: the second round is no better than the first. Nobody is asked the second time."""
    settings = {"method": {"name": "fedavg", "lr": 1e-9, "epochs": 1}, "rounds": 5, "patience": 1, "clients": 3}
    rows = local_run(sites_of(sites_data, tmp_path), tmp_path / "runs", **settings)
    assert len(rows) == 2
    ended = (tmp_path / "runs" / "r" / "result.json").read_bytes()
    news: list[Any] = []
    assert local_run({}, tmp_path / "runs", news, **settings) == rows
    assert (tmp_path / "runs" / "r" / "result.json").read_bytes() == ended
    assert "stopped after round 2: no better AMP" in " ".join(item.get("note", "") for item in news)


def test_too_few_sites_are_named(sites_data: dict[str, Path], tmp_path: Path) -> None:
    """Two of three wanted sites come, and one of them refuses: the run says who came, and who refused why."""
    from fedstill.core.errors import RunError

    sites = sites_of(sites_data, tmp_path)
    del sites["site-c"]
    sites["site-b"] = lambda head, body: (Refusal(run="r", site="site-b", why="not on Sundays").dumps(), None)
    with pytest.raises(RunError, match=r"only 1 of 3 sites came within 1 s: site-a; site-b .*not on Sundays"):
        local_run(sites, tmp_path / "runs", clients=3)
