"""The hub's half of a deployed run: enrol the sites, drive the one loop over them, write the run's folder."""

import json
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedstill.core.errors import DataError, RunError, UsageError
from fedstill.core.loop import Round
from fedstill.core.record import write
from fedstill.core.shelf import Shelf
from fedstill.experiment.config import Experiment, experiment
from fedstill.experiment.drive import direction, drive, ended, exhausted, one_thread
from fedstill.experiment.examine import row_of
from fedstill.experiment.lock import writing
from fedstill.experiment.metrics import Scorer
from fedstill.experiment.result import Result
from fedstill.experiment.rundir import METRICS, Checkpoint, RunDir
from fedstill.experiment.setting import Setting
from fedstill.experiment.stage import Stage
from fedstill.experiment.watcher import Watcher
from fedstill.flower.enrolment import checksum, deployable, misnamed, odd_ones, public_set, read_setting, settle
from fedstill.flower.messages import Marks, checked_name, readable
from fedstill.flower.post import Post
from fedstill.flower.roster import Remembered, Roster
from fedstill.flower.runbook import agreed_part, digest, disagreement, fixed_part
from fedstill.flower.sums_hub import summed
from fedstill.flower.transport import FlowerTransport

Tell = Callable[[Mapping[str, Any]], None]
NUMBERS = ".numbers.json"
"""In a run's folder: the number of each experiment that was tried under its name."""


def serve(
    post: Post,
    run: str,
    settings: Mapping[str, Any],
    runs: Path,
    public: str | None,
    wait: float,
    tell: Tell,
    signature: str = "",
) -> Result:
    """Run an experiment over the sites that are there, or go on with it from its last checkpoint.

    `post` reaches the nodes, `public` is where this machine has the public set, `wait` is how many seconds sites have
    to come, `tell` is given what whoever started the run should know, and `signature` is that person's.
    """
    folder = runs / checked_name("run", run)
    folder.mkdir(parents=True, exist_ok=True)
    with writing(folder, wait=15), one_thread():  # the one before may be about to end
        setting = _begun(folder)
        plan, stopped = deployable(experiment(settings)), ""
        run_id = _number(folder, plan) if setting is None else setting.run_id
        roster = Roster(post, run, run_id, json.dumps(plan.plain()), signature)  # the very plan that was signed
        if setting is None:
            enrolled = _enrolled(roster, plan, public, wait, tell)
            setting = settle(run, run_id, plan, enrolled)
            roster.remembered = {site: Remembered(introduction.data) for site, introduction in enrolled.items()}
        else:
            setting = _same(folder, setting, plan)
            roster.remembered = _remembered(folder, setting)
            stopped = _stopped(RunDir.open(folder), setting.plan)
            if not stopped:
                _returned(roster, setting, wait, tell)
        for site, why in roster.refused.items():
            tell({"note": f"{site} {why}"})
        if setting.counted:
            tell({"note": _capped(setting)})
        return _train(post, roster, setting, folder, public, tell, stopped)


def _begun(folder: Path) -> Setting | None:
    """The setting of a run that has begun here, None where it has not."""
    file = folder / "setting.json"
    if not file.exists() or not (folder / "experiment.json").exists():  # which is written last
        if (folder / METRICS).exists():
            raise RunError(f"{folder}: holds a run that was not deployed, or lost its setting.json or experiment.json")
        return None
    try:
        setting = read_setting(file.read_text(errors="replace"))
        kept = RunDir.open(folder).read("sites.json")
        if kept["sha256"] != digest([kept["data"], fixed_part(setting)]):
            raise ValueError("their checksum does not match")
    except (DataError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{file} or sites.json: damaged ({readable(str(error))})") from None
    return setting


def _number(folder: Path, plan: Experiment) -> str:
    """The unguessable number of a run that has not begun: at every try the same, so that sites know it again.

    Some may have enrolled when others did not come, and a person's consent is good for one number.
    """
    tried, agreed = RunDir(folder), digest(agreed_part(plan.plain()))
    numbers: dict[str, str] = tried.read(NUMBERS) or {}
    if agreed not in numbers:
        numbers[agreed] = secrets.token_hex(16)
        tried.write(NUMBERS, numbers)
    return numbers[agreed]


def _capped(setting: Setting) -> str:
    """Who counts for less than it claims."""
    less = [
        f"{site} counts as {counts} samples instead of {size}"
        for site, size, counts in zip(setting.sites, setting.sizes, setting.counted, strict=True)
        if counts != size
    ]
    return f"largest_share = {setting.plan.largest_share:g}: {', '.join(less)}"


def _remembered(folder: Path, setting: Setting) -> dict[str, Remembered]:
    """What the hub knows of the sites from earlier in the run: their data's checksums, and their last turns."""
    here = RunDir.open(folder)
    known = {site: Remembered(str(data)) for site, data in here.read("sites.json")["data"].items()}
    try:
        for row in here.rows():
            for client in row["client_seconds"]:
                known[setting.sites[int(client)]].turns = int(row["round"])
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise RunError(f"{here.path / METRICS}: damaged ({readable(repr(error))})") from None
    return known


def _same(folder: Path, setting: Setting, plan: Experiment) -> Setting:
    """The setting of a run that goes on: only its rounds may have become more."""
    before, now = dict(setting.experiment), dict(plan.plain())
    if wrong := disagreement(before, now):
        raise UsageError(f"run {setting.run} exists with {wrong}: take another --name")
    changed = {key: now[key] for key in ("rounds", "deadline", "quarantine", "largest_update")}
    if changed == {key: before[key] for key in changed}:
        return setting
    setting = replace(setting, experiment={**before, **changed})
    write(folder / "setting.json", setting.text().encode())
    RunDir.open(folder).write("experiment.json", setting.experiment)
    return setting


def _enrolled(roster: Roster, plan: Experiment, public: str | None, wait: float, tell: Tell) -> Mapping[str, Any]:
    """Wait until as many sites as the experiment has clients are there."""
    mine = checksum(public_set(plan, public))
    named = [spec for spec in (plan.model, plan.server_model, *plan.models) if isinstance(spec, str)]
    until = time.monotonic() + wait
    shown = -1
    while True:
        roster.call()
        for site, introduction in list(roster.enrolled.items()):
            if introduction.public != mine:
                roster.refuse(site, f"its public set is another than the hub's ({introduction.public})")
            elif wrong := misnamed(introduction.model, named):
                roster.refuse(site, wrong)
        for site, why in odd_ones({site: roster.enrolled[site] for site in roster.here()}).items():
            roster.refuse(site, why)
        here = roster.here()
        if len(here) != shown:
            shown = len(here)
            tell({"note": f"{shown} of {plan.clients} sites are here: {', '.join(here) or 'none'}"})
        if len(here) >= plan.clients:
            return {site: roster.enrolled[site] for site in here}
        if time.monotonic() > until:
            why = "".join(f"; {site} {reason}" for site, reason in roster.refused.items())
            raise RunError(
                f"only {len(here)} of {plan.clients} sites came within {wait:g} s: {', '.join(here) or 'none'}{why}"
            )
        time.sleep(0.3)


def _returned(roster: Roster, setting: Setting, wait: float, tell: Tell) -> None:
    """A run that goes on waits for its sites, but not for those that stay away."""
    until = time.monotonic() + wait
    while time.monotonic() < until:
        roster.call(setting.sites)
        if all(roster.node(site) is not None for site in setting.sites):
            return
        time.sleep(0.3)
    away = [site for site in setting.sites if roster.node(site) is None]
    tell({"note": f"going on without {', '.join(away)}"})
    if len(away) == len(setting.sites):
        raise RunError(f"none of the sites came back within {wait:g} s")


def _stopped(folder: RunDir, plan: Experiment) -> str:
    """Why a run had no patience left at its last checkpoint; empty where it goes on."""
    rows = folder.rows()
    done = folder.latest(len(rows))[0] if plan.patience else None
    return exhausted(rows[: done.round], plan.patience, direction(plan), plan.method.judged_by) if done else ""


def _train(
    post: Post, roster: Roster, setting: Setting, path: Path, public: str | None, tell: Tell, stopped: str
) -> Result:
    """Drive the loop to the run's end; one that was `stopped` before has its result already."""
    plan = setting.plan
    ready = setting.stage(RunDir(path, plan.memory).storage, public_set(plan, public))
    ready.env.build(None, None)  # a model that does not fit the data is named before anything runs
    checkpoint = None
    if _begun(path) is not None:
        folder = RunDir.open(path)
        checkpoint, notes = folder.latest(len(folder.rows()))
        for note in notes:
            tell({"note": note})
        folder.rewind(checkpoint.round if checkpoint else 0)
    else:
        RunDir.vacant(path)
        folder = RunDir(path)
        tests = {"client_names": list(setting.sites), "samples": list(setting.sizes), "tests": list(setting.tests)}
        folder.write("partition.json", {**tests, "class_names": list(setting.class_names), "notes": []})
        data = {site: known.data for site, known in roster.remembered.items()}
        folder.write("sites.json", {"data": data, "sha256": digest([data, fixed_part(setting)])})
        write(path / "setting.json", setting.text().encode())
        folder = RunDir.create(path, plan.plain(), f"fedstill deploy ({setting.run})")
    teller = Telling(setting, tell)
    if stopped:
        result = ended(Result.of(plan.plain(), folder.rows(), path, stopped), plan, folder, teller)
    else:
        states = Shelf("clients", ready.env.storage)
        link = FlowerTransport(post, setting, plan.method, states, roster, teller.note, summed(plan))
        result, _ = drive(plan, ready, link, Marking(ready, setting, link), folder, checkpoint, teller)
    _models(result, plan, ready, folder)
    return result


def _models(result: Result, plan: Experiment, ready: Stage, folder: RunDir) -> None:
    """The global models as plain safetensors files, for use anywhere."""
    from safetensors.torch import save

    last, _ = folder.latest()
    assert isinstance(last, Checkpoint)
    for name, weights in plan.method.models(ready.env, last.server).items():
        write(folder.path / "models" / f"{name}.safetensors", save({k: v.contiguous() for k, v in weights.items()}))


class Marking:
    """A round's line of metrics, from the marks that the sites give."""

    def __init__(self, ready: Stage, setting: Setting, link: FlowerTransport) -> None:
        self.plan = setting.plan
        self.env = ready.env
        self.setting = setting
        self.link = link
        self.absent: list[str] = []

    def row(self, done: Round) -> dict[str, Any]:
        """Everything about a round; sites are named beside their numbers."""
        self.absent = []
        row = row_of(self.plan, self.env, done, self.scores)
        row["missing_sites"] = {self.setting.sites[k]: why for k, why in done.missing.items()}
        row["unexamined_sites"] = self.absent
        return row

    def scores(self, done: Round) -> dict[str, Any]:
        """Every model's metrics, the sites' own models as `personal`."""
        env = self.env.at(done.number)
        models = self.plan.method.models(env, done.server)
        marks = self.link.examine(env, models, self.plan.method.architectures(env, done.server))
        self.absent = [site for k, site in enumerate(self.setting.sites) if k not in marks]
        scores = {name: self._scores(marks, name) for name in models}
        if any(m.own is not None for m in marks.values()):
            scores["personal"] = self._scores(marks, "personal")
        return scores

    def _scores(self, marks: Mapping[int, Marks], name: str) -> dict[str, Any]:
        everyone = range(len(self.setting.sites))
        right = {k: m.own if name == "personal" else m.right.get(name) for k, m in marks.items()}
        shares = {k: count / marks[k].total for k, count in right.items() if count is not None and marks[k].total}
        local = [shares.get(k) for k in everyone]
        scores = Scorer.of().scores([{"accuracy": share} for share in local], self.setting.tests, {})
        if self.plan.per_class and name != "personal":
            counts = [m.classes for m in marks.values() if m.total]  # a site without tests has none
            classes = range(len(self.setting.class_names))
            hits, there = ([sum(c[n][i] for c in counts) for i in classes] for n in (name, ""))
            scores["per_class"] = [h / n if n else None for h, n in zip(hits, there, strict=True)]
        return scores


class Telling(Watcher):
    """Tells whoever started the run how it goes."""

    def __init__(self, setting: Setting, tell: Tell) -> None:
        self.setting = setting
        self.tell = tell

    def started(self, experiment: Experiment, stage: Stage, folder: Path | None, first: int) -> None:
        """The sites are there."""
        self.tell({"started": {"sites": list(self.setting.sites), "folder": str(folder), "first": first}})

    def round(self, row: Mapping[str, Any]) -> None:
        """A round has ended."""
        self.tell({"row": row})

    def note(self, text: str) -> None:
        """Something the user should know."""
        self.tell({"note": text})
