"""Systems that cannot fork, by forbidding it here: the same bits, runs side by side all the same."""

from pathlib import Path

import pytest
from smallest import small_experiment, small_method

from fedstill.experiment import batch
from fedstill.experiment.run import start
from fedstill.transports import processes


def test_without_fork_clients_stay_in_this_process_and_the_bits_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = small_experiment(small_method("fedavg"), rounds=1, workers="2")
    forked = start(plan, out=None)
    monkeypatch.setenv("FEDSTILL_FORK", "0")
    assert not processes.forks()
    monkeypatch.setattr(processes.Processes, "__init__", lambda *given: pytest.fail("workers were forked"))
    alone = start(plan, out=None)
    assert alone.rows[-1]["models"] == forked.rows[-1]["models"]


def test_without_fork_runs_are_spawned_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSTILL_FORK", "0")
    jobs = [batch.job(small_experiment(small_method("fedavg"), rounds=1, seed=seed), tmp_path) for seed in (1, 2)]
    assert batch.run_all(jobs, at_once=2) == {}
    assert all(batch.finished(job.path) for job in jobs)
