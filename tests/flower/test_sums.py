"""Secure sums between a hub and sites: what the hub sees, who may be lost when, and what nobody tells."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federation import LONG, SITES, Federation
from local_post import AVG, local_run
from scipy import stats
from smallest import same_bits

pytest.importorskip("pydantic", reason="the deployed form needs the extra fedstill[flower]")
pytest.importorskip("Crypto")

import fedstill
from fedstill.core import record
from fedstill.core.errors import FedstillError
from fedstill.data import load
from fedstill.experiment.config import experiment
from fedstill.experiment.rundir import RunDir
from fedstill.flower.keys import make_key
from fedstill.flower.messages import (
    Enrol,
    Enrolled,
    KeysAsked,
    KeysGiven,
    MaskedTask,
    Refusal,
    SharesAsked,
    SharesGiven,
    Task,
    UnmaskAsked,
    answer,
    question,
)
from fedstill.flower.once import only_once
from fedstill.flower.partners import check_members, signed_keys
from fedstill.flower.policy import Policy
from fedstill.flower.site import Site
from fedstill.parts.averaging import Broadcast
from fedstill.parts.secrecy import Member
from fedstill.parts.secure_sums import Masked, Scale

NAMES = ("site-a", "site-b", "site-c", "site-d")
PHASES = (KeysAsked, SharesAsked, MaskedTask, UnmaskAsked)
SECURE = {"wrappers": [{"name": "secure-sums", "threshold": 0.75}]}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Forty digits for each of four sites: three of them are the threshold."""
    folder, digits = tmp_path_factory.mktemp("four"), load("digits")
    for place, name in enumerate(NAMES):
        index = np.arange(40 * place, 40 * place + 40)
        np.savez(folder / f"{name}.npz", x_train=digits.train.x[index].numpy(), y_train=digits.train.y[index].numpy())
    return {name: folder / f"{name}.npz" for name in NAMES}


class Seen:
    """Four sites; everything they answer is written down as the hub gets it. `fate` may lose an answer."""

    def __init__(self, data: dict[str, Path], folder: Path, fate: Callable[[str, Any], bool] = lambda site, q: False):
        self.fate = fate
        self.answers: list[tuple[Any, bytes, bytes | None]] = []
        self.sites = {name: Site(name, str(path), folder / name) for name, path in data.items()}

    def asked(self, name: str) -> Callable[[bytes, bytes | None], Any]:
        def answer(head: bytes, body: bytes | None) -> Any:
            what = question(head)
            if self.fate(name, what):
                return FedstillError("offline since the middle of the round")
            found = self.sites[name].answer(head, body)
            self.answers.append((what, *found))
            return found

        return answer

    def run(self, folder: Path, **settings: Any) -> list[dict[str, Any]]:
        answers = {name: self.asked(name) for name in self.sites}
        return local_run(answers, folder, **{**SECURE, **settings})


def ended(folder: Path) -> Any:
    checkpoint, _ = RunDir.open(folder / "r").latest()
    assert checkpoint is not None
    return checkpoint.server


@pytest.mark.parametrize("method", ["fedavg", "fedkf"])
def test_the_deployed_sum_is_the_plain_one_and_no_upload_is_seen(
    method: str, data: dict[str, Path], tmp_path: Path
) -> None:
    """Two rounds, with T1's slots on the sites both times. Weights are numbers below 2, and a step of the scale is
    64 · 4/2³² = 6e-8; single precision and a second round of training leave 1e-5.
    """
    how = {"name": method, "lr": 0.05, "epochs": 1, "batch": 16, "gather": {"name": "remember", "slots": "client"}}
    seen = Seen(data, tmp_path / "sites")
    rows = seen.run(tmp_path / "secure", method=how)
    Seen(data, tmp_path / "plain-sites").run(tmp_path / "plain", method=how, wrappers=[])
    assert [row["missing"] for row in rows] == [{}, {}]
    secure, plain = ended(tmp_path / "secure"), ended(tmp_path / "plain")
    for name, weight in plain.weights.items():
        assert torch.allclose(weight, secure.weights[name], atol=1e-5), name
    for name, total in plain.memory.total.items():
        assert torch.allclose(total, secure.memory.total[name], atol=1e-3), name
    bodies = [record.loads(body) for asked, _, body in seen.answers if isinstance(asked, Task) and body]
    assert len(bodies) == 8
    assert all(isinstance(body, Masked) for body in bodies)


def test_bytes_are_those_of_the_masked_numbers(data: dict[str, Path], tmp_path: Path) -> None:
    """Four sites: 32 bits for each weight, and a counter. The opened mean, which no site sent, is not counted."""
    how = {"name": "fedavg", "epochs": 1, "batch": 16, "gather": {"name": "everyone"}}
    (row,) = Seen(data, tmp_path / "sites").run(tmp_path / "run", method=how, rounds=1)
    count = sum(weight.numel() for weight in ended(tmp_path / "run").weights.values())
    assert row["bytes"]["up"] == {"words": 4 * 4 * count, "version": 4 * 8}


def test_one_round_is_exact_to_the_quantisation_bound(data: dict[str, Path], tmp_path: Path) -> None:
    """All count alike: the mean is off by half a step (limit 1: 2 · 4/2³²) at most, and by single precision."""
    how = {"name": "fedrad", "lr": 0.01, "epochs": 1, "batch": 16}
    sums = {"wrappers": [{"name": "secure-sums", "limit": 1.0}]}
    Seen(data, tmp_path / "a").run(tmp_path / "secure", method=how, rounds=1, **sums)
    Seen(data, tmp_path / "b").run(tmp_path / "plain", method=how, rounds=1, wrappers=[])
    secure, plain = ended(tmp_path / "secure").weights, ended(tmp_path / "plain").weights
    worst = max(float((secure[n].double() - plain[n].double()).abs().max()) for n in plain)
    assert worst <= Scale(1.0, 4).step / 2 + 2**-24


@pytest.mark.parametrize("phase", [0, 1, 2, 3])
def test_a_site_lost_in_any_phase_leaves_the_sum_of_the_others(
    phase: int, data: dict[str, Path], tmp_path: Path
) -> None:
    """Site c goes in the first round. Before its vector came, the round is that of the other three; while unmasking,
    its vector is in the sum, and only its share is missing. In the second round all four are there again.
    """
    once = [False]

    def fate(site: str, asked: Any) -> bool:
        gone = site == "site-c" and isinstance(asked, PHASES[phase]) and asked.round == 0
        once[0] |= gone
        return gone

    rows = Seen(data, tmp_path / "sites", fate).run(tmp_path / "run")
    assert once[0]
    assert rows[1]["missing"] == {}
    if phase == 3:
        assert rows[0]["missing"] == {}
        return
    (why,) = rows[0]["missing"].values()
    assert why.startswith("secure sums: lost while")
    first = Seen(data, tmp_path / "others", lambda site, asked: site == "site-c" and isinstance(asked, Task))
    plain = first.run(tmp_path / "plain", wrappers=[], rounds=1)
    assert list(plain[0]["missing"]) == list(rows[0]["missing"])
    again = Seen(data, tmp_path / "again", fate).run(tmp_path / "one", rounds=1)
    assert len(again) == 1
    for name, weight in ended(tmp_path / "plain").weights.items():
        assert torch.allclose(weight, ended(tmp_path / "one").weights[name], atol=1e-6), name


@pytest.mark.parametrize("phase", [0, 1, 2, 3])
def test_below_the_threshold_the_round_is_given_up_and_nothing_is_told(
    phase: int, data: dict[str, Path], tmp_path: Path
) -> None:
    """Two of four go: too few for three. The model stays, nobody unmasks (but in phase 3, where two shares are told and
    three are needed), and the second round is held as if the first had not been.
    """

    def fate(site: str, asked: Any) -> bool:
        return site in ("site-b", "site-c") and isinstance(asked, PHASES[phase]) and asked.round == 0

    seen = Seen(data, tmp_path / "sites", fate)
    rows = seen.run(tmp_path / "run", quarantine=5)
    assert len(rows[0]["missing"]) == 4
    assert sum("the round is given up" in why for why in rows[0]["missing"].values()) >= 2
    told = [asked for asked, _, _ in seen.answers if isinstance(asked, UnmaskAsked) and asked.round == 0]
    assert len(told) == (2 if phase == 3 else 0)
    arrived = {2: 2, 3: 4}.get(phase, 0)  # vectors whose bytes were received, though nobody sums them
    assert rows[0]["bytes"]["up"].get("version", 0) == arrived * 8
    assert rows[1]["missing"] == {}
    assert rows[0]["models"]["active"]["amp"] != rows[1]["models"]["active"]["amp"]


def test_what_the_hub_receives_is_independent_of_what_was_sent(data: dict[str, Path], tmp_path: Path) -> None:
    """Two runs whose uploads differ widely (rates of 1e-6 and .5). The words are uniform in both (χ² over 16 bins of
    high and of low bits), two-sample tests see no difference, and no word agrees with another site's or run's. Keys are
    drawn anew in every run, so the bounds are those that chance exceeds once in some hundred million runs.
    """
    vectors = []
    for run, lr in (("small", 1e-6), ("large", 0.5)):
        seen = Seen(data, tmp_path / run)
        seen.run(tmp_path / f"run-{run}", method={"name": "fedavg", "lr": lr, "epochs": 1}, rounds=1)
        bodies = [record.loads(body) for asked, _, body in seen.answers if isinstance(asked, MaskedTask) and body]
        vectors.append([body.words.numpy().view(np.uint32) for body in bodies])
    for words in (np.concatenate(run) for run in vectors):
        assert stats.chisquare(np.bincount(words >> 28, minlength=16)).pvalue > 1e-9
        assert stats.chisquare(np.bincount(words & 15, minlength=16)).pvalue > 1e-9
    every = [words.astype(float) for run in vectors for words in run]
    together = np.corrcoef(np.stack(every)) - np.eye(len(every))
    assert np.abs(together).max() < 7 / np.sqrt(len(every[0]))
    assert stats.ks_2samp(np.concatenate(vectors[0]), np.concatenate(vectors[1])).pvalue > 1e-9


@pytest.mark.parametrize("phase", [0, 1, 2])
def test_a_site_that_answers_nonsense_is_left_out_by_name(phase: int, data: dict[str, Path], tmp_path: Path) -> None:
    """Keys of another length, letters for some members only, a vector of another length: the others go on."""
    seen = Seen(data, tmp_path / "sites")
    good = seen.asked("site-b")

    def rogue(head: bytes, body: bytes | None) -> Any:
        told, vector = good(head, body)
        what = answer(told)
        if phase == 0 and isinstance(what, KeysGiven):
            told = what.model_copy(update={"masking": "ab" * 40}).dumps()
        if phase == 1 and isinstance(what, SharesGiven):
            told = what.model_copy(update={"letters": what.letters[:1]}).dumps()
        if phase == 2 and vector is not None:
            vector = record.dumps(Masked(torch.zeros(3, dtype=torch.int32), 0))
        return told, vector

    seen.asked = lambda name: rogue if name == "site-b" else Seen.asked(seen, name)  # type: ignore[method-assign]
    (row,) = seen.run(tmp_path / "run", rounds=1)
    (why,) = row["missing"].values()
    assert "refused: " in why


def test_a_site_sends_nothing_unmasked_and_unmasks_a_round_once(data: dict[str, Path], tmp_path: Path) -> None:
    """A hub that asks for a plain turn, for the sum of other sites, or for a second sum of the same round."""
    seen = Seen(data, tmp_path / "sites")
    seen.run(tmp_path / "run", rounds=1)
    last = next(asked for asked, _, _ in seen.answers if isinstance(asked, UnmaskAsked) and asked.client == 0)
    task = next(asked for asked, _, _ in seen.answers if isinstance(asked, MaskedTask) and asked.client == 0)
    plain = {name: value for name, value in task.model_dump().items() if name not in ("kind", "letters")}
    site = seen.sites["site-a"]

    def says(asked: Any, body: bytes | None = None) -> str:
        return site.answer(asked.dumps(), body)[0].decode()

    down = down_of(tmp_path)
    assert "the upload would leave unmasked" in says(Task(**plain), down)
    assert "was unmasked once, to another question" in says(last.model_copy(update={"arrived": (0, 1, 2)}))
    assert "is in no meeting" in says(last)


def smaller(setting: str, **changes: Any) -> str:
    """A setting's JSON with other things said in its experiment."""
    known = json.loads(setting)
    return json.dumps({**known, "experiment": {**known["experiment"], **changes}})


def test_a_hub_cannot_lower_the_threshold_after_enrolment(data: dict[str, Path], tmp_path: Path) -> None:
    """Rounds of one of four sites would need one alone to stay: its own seed's only share would lay its upload open.

    The number of a round's sites is as little the hub's to change as the experiment: neither below what was said at
    enrolment, by the very first question, nor to another number later: three shares among eight sites are no majority.
    """
    seen = Seen(data, tmp_path / "sites")
    seen.run(tmp_path / "run", rounds=2)
    enrol = next(asked for asked, _, _ in seen.answers if isinstance(asked, Enrol))
    keys = next(asked for asked, _, _ in seen.answers if isinstance(asked, KeysAsked) and asked.client == 0)
    for folder, more in ((tmp_path / "sites" / "site-a", {}), (tmp_path / "new", {"run_id": "f" * 32})):
        site = Site("site-a", str(data["site-a"]), folder)
        assert isinstance(answer(site.answer(enrol.model_copy(update=more).dumps())[0]), Enrolled)
        for changes in ({"active": 0.25}, {"active": 2}, {"active": 0.5}, {"clients": 3}):
            setting = smaller(keys.setting.replace(keys.run_id, more.get("run_id", keys.run_id)), **changes)
            asked = keys.model_copy(update={"round": 1, "setting": setting, **more})
            assert isinstance(answer(site.answer(asked.dumps())[0]), Refusal), changes
    known = seen.sites["site-a"]
    for changes in ({"clients": 8}, {"active": 8, "clients": 8}, {"clients": 3}):
        asked = keys.model_copy(update={"round": 1, "setting": smaller(keys.setting, **changes)})
        assert isinstance(answer(known.answer(asked.dumps())[0]), Refusal), changes
    (book,) = (tmp_path / "sites" / "site-a" / "runs").glob("*/run.json")
    before = json.loads(book.read_text())["asked"]
    assert isinstance(answer(known.answer(keys.model_copy(update={"round": 1}).dumps())[0]), KeysGiven)
    assert json.loads(book.read_text())["asked"] == before + 1


def test_sites_that_know_each_other_take_no_keys_of_the_hubs(data: dict[str, Path], tmp_path: Path) -> None:
    """Four partners sum together. A hub that gives one of them its own keys in another's name, to read the letters and
    take the masks off, is refused by that one, and the others sum without it.
    """
    keys = {name: make_key(tmp_path / name) for name in NAMES}
    policy = Policy(partners=tuple(public for _, public in keys.values()))
    seen = Seen(data, tmp_path / "sites")
    for name, (private, _) in keys.items():
        seen.sites[name] = Site(name, str(data[name]), tmp_path / "known" / name, policy=policy, key=private)

    def between(head: bytes, body: bytes | None) -> Any:
        asked = question(head)
        if isinstance(asked, SharesAsked) and asked.round == 1:
            ours = (key.hex() for key in Member(1, 3).public())
            others = [entry for entry in asked.keys if entry[0] != 1]
            asked = asked.model_copy(update={"keys": ((1, *ours, asked.keys[1][3]), *others)})
        return seen.sites["site-a"].answer(asked.dumps(), body)

    seen.asked = lambda name: between if name == "site-a" else Seen.asked(seen, name)  # type: ignore[method-assign]
    rows = seen.run(tmp_path / "run", rounds=2)
    assert rows[0]["missing_sites"] == {}
    assert list(rows[1]["missing_sites"]) == ["site-a"]
    assert "the keys of site-b are not signed by it" in rows[1]["missing_sites"]["site-a"]


def test_a_partners_signature_is_good_for_its_own_keys_in_one_round(tmp_path: Path) -> None:
    """Of another round, run or site, of other keys, or of nobody; and a site that is no partner at all."""
    (mine, public), (_, other) = make_key(tmp_path / "site-b"), make_key(tmp_path / "site-c")
    common: dict[str, Any] = {"run": "r", "client": 1, "setting": "{}", "deadline": 9.0}
    asked = KeysAsked(run_id="a" * 32, round=3, **common)
    pair = Member(1, 2).public()
    good = signed_keys(mine, "site-b", asked, pair)
    sites = ("site-a", "site-b", "site-c")

    def checked(signature: str = good, partner: Path = public, client: int = 1, keys: Any = pair, **of: Any) -> None:
        where: dict[str, Any] = {"run_id": "a" * 32, "round": 3, **of, **common}
        told = SharesAsked(**where, keys=((client, keys[0].hex(), keys[1].hex(), signature),))
        check_members((partner,), "site-a", sites, told, {client: keys})

    checked()
    for spoilt in (
        {"round": 4}, {"run_id": "b" * 32}, {"keys": Member(1, 2).public()}, {"keys": pair[::-1]}, {"signature": ""},
        {"signature": signed_keys(mine, "site-c", asked, pair)}, {"signature": "ab" * 100},
    ):  # fmt: skip
        with pytest.raises(FedstillError, match="the keys of site-b are not signed by it"):
            checked(**spoilt)  # type: ignore[arg-type]
    for stranger in ({"partner": other}, {"client": 2}, {"client": 9}):
        with pytest.raises(FedstillError, match="not one of the partners"):
            checked(**stranger)  # type: ignore[arg-type]


def test_more_sites_than_were_asked_for_sum_together(data: dict[str, Path], tmp_path: Path) -> None:
    """Three are asked for, four come: the round is of four, at the sites' too, and goes on so after a restart."""
    seen = Seen(data, tmp_path / "sites")
    assert [row["missing"] for row in seen.run(tmp_path / "run", clients=3, rounds=1)] == [{}]
    assert [row["missing"] for row in seen.run(tmp_path / "run", clients=3, rounds=2)] == [{}, {}]
    assert {asked.client for asked, _, body in seen.answers if isinstance(asked, Task) and body} == {0, 1, 2, 3}


def down_of(folder: Path) -> bytes:
    """The bytes of the first round's download."""
    from fedstill.core.shelf import Storage
    from fedstill.experiment.setting import Setting

    setting = Setting.read((folder / "run" / "r" / "setting.json").read_text())
    env = setting.stage(Storage()).env
    method = setting.plan.method
    return record.dumps(method.download(env.at(0, 0), method.init_server(env.at(0))))


def test_a_round_is_answered_to_one_download_only(tmp_path: Path) -> None:
    only_once(tmp_path, 3, b"w")
    only_once(tmp_path, 3, b"w")
    only_once(tmp_path, 4, b"other")
    with pytest.raises(FedstillError, match="round 4 was answered once, to another question"):
        only_once(tmp_path, 3, b"other")


def test_noise_of_a_site_is_the_same_after_a_restart_and_unknown_to_others(
    data: dict[str, Path], tmp_path: Path
) -> None:
    """A first round that is asked for again (the hub lost it) has the same answer, also by a site started anew: the
    secret is the site's, not the turn's. Another site with the same samples has other noise.
    """
    private = {"wrappers": [{"name": "private-samples", "epsilon": 8.0, "delta": 1e-3}], "rounds": 1}
    seen = Seen(dict.fromkeys(NAMES[:3], data["site-a"]), tmp_path / "sites")
    seen.run(tmp_path / "run", **private)
    turns = [(asked, record.loads(body)) for asked, _, body in seen.answers if isinstance(asked, Task) and body]
    (asked, mine), (_, other) = (next(t for t in turns if t[0].client == k) for k in (0, 1))
    down, anew = down_of(tmp_path), Site("site-a", str(data["site-a"]), tmp_path / "sites" / "site-a")
    again = record.loads(anew.answer(asked.dumps(), down)[1] or b"")
    assert same_bits(again, mine)
    assert not same_bits(mine, other)
    changed = record.dumps(Broadcast({name: w + 1 for name, w in record.loads(down).weights.items()}))
    assert "was answered once" in anew.answer(asked.dumps(), changed)[0].decode()


def test_compressed_uploads_are_read_at_the_hub(data: dict[str, Path], tmp_path: Path) -> None:
    rows = Seen(data, tmp_path / "sites").run(tmp_path / "run", wrappers=[{"name": "quantise", "width": 8}])
    assert [row["missing"] for row in rows] == [{}, {}]
    assert rows[0]["bytes"]["up"].keys() == {"codes", "key", "version"}


def test_a_deployed_plan_masks_on_the_sites_and_simulates_no_losses() -> None:
    plan = experiment({**AVG, **SECURE, "clients": 4, "active": 1.0, "transport": "flower"})
    assert plan.wrappers[0].apart
    with pytest.raises(FedstillError, match="sites are real"):
        experiment({**plan.plain(), "wrappers": [{"name": "secure-sums", "lost": [0.1, 0, 0, 0]}]})


@LONG
@pytest.mark.xdist_group("deploy")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Flower
def test_a_real_hub_and_real_sites_end_where_the_simulator_does(
    federation: Federation, sites_data: dict[str, Path], tmp_path: Path
) -> None:
    """FedKF with secure sums, three sites in processes of their own, two rounds; losses of precision as above."""
    plan: dict[str, Any] = {
        "method": {"name": "fedkf", "lr": 0.05, "epochs": 1, "batch": 16, "noise": 8, "channels": 4},
        "model": "mlp", "rounds": 2, "seed": 4, "wrappers": [{"name": "secure-sums"}],
    }  # fmt: skip
    here = [str(sites_data[name]) for name in SITES]
    fedstill.run(**plan, data=here, active=1.0, workers="inline", out=tmp_path, name="simulated")
    home = federation.deploy({**plan, "name": "secure"})
    assert [row["missing"] for row in RunDir.open(home).rows()] == [{}, {}]
    ends = [RunDir.open(path).latest()[0] for path in (tmp_path / "simulated", home)]
    mine, theirs = (dict(record.leaves(end.server.weights)) for end in ends if end is not None)
    assert max(float((mine[n] - theirs[n]).abs().max()) for n in mine) < 1e-5
