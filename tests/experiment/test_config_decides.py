"""Every setting says what it decides, and everything that compares settings asks it."""

from dataclasses import fields, replace
from pathlib import Path

from smallest import small_experiment, small_method

from fedstill.core.value import deciding
from fedstill.experiment import batch
from fedstill.experiment.config import Experiment, given_as_objects, identity
from fedstill.report.command import command


def test_what_only_decides_the_running_is_no_part_of_a_runs_identity() -> None:
    plan = small_experiment(small_method("fedavg"))
    other = replace(plan, workers="2", memory=1, checkpoint_every=2, deadline=1.0, quarantine=9)
    running = {"workers", "memory", "checkpoint_every", "deadline", "quarantine", "fingerprint"}
    running |= {"largest_share", "largest_update"}  # whom the hub leaves out, as with quarantine
    assert set(deciding(Experiment, "running")) == running
    assert identity(plan.plain()) == identity(other.plain())
    assert batch.job(plan, Path("x")).path == batch.job(other, Path("x")).path


def test_tags_and_a_note_decide_nothing() -> None:
    plan = small_experiment(small_method("fedavg"))
    other = replace(plan, tag=("final",), note="for the talk")
    assert set(deciding(Experiment, "nothing")) == {"tag", "note"}
    assert identity(plan.plain()) == identity(other.plain())
    assert batch.job(plan, Path("x")).path == batch.job(other, Path("x")).path
    assert command(plan.plain()) == command(other.plain())


def test_what_decides_the_reporting_keeps_runs_apart_on_disk_and_together_in_a_table() -> None:
    plan = small_experiment(small_method("fedavg"))
    other = replace(plan, evaluate_every=2)
    assert batch.job(plan, Path("x")).path != batch.job(other, Path("x")).path
    assert identity(plan.plain(), reporting=False) == identity(other.plain(), reporting=False)


def test_what_decides_the_bits_is_never_left_out() -> None:
    plan = small_experiment(small_method("fedavg"))
    assert identity(plan.plain()) != identity(replace(plan, drop=0.5).plain())
    assert all(f.metadata["decides"] in ("bits", "running", "reporting", "nothing") for f in fields(Experiment))


def test_objects_are_described_in_one_way() -> None:
    plan = small_experiment(small_method("fedavg"), model=dict, data={"x_train": 1})
    assert (plan.plain()["model"], plan.plain()["data"]) == ("<dict>", "<dict>")
    assert plan.objects == given_as_objects(plan.plain()) == ("data", "model")
