"""One writer a run: a second one is refused and told who is there; a writer that is gone holds nothing."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from smallest import small_experiment, small_method

from fedstill.core.errors import RunError, UsageError
from fedstill.experiment.lock import writer, writing
from fedstill.experiment.run import Watcher, resume, start
from fedstill.experiment.rundir import RunDir


def test_the_second_is_refused_and_told_who_has_it(tmp_path: Path) -> None:
    assert writer(tmp_path) is None
    with writing(tmp_path):
        second = writing(tmp_path, wait=0.2)
        with pytest.raises(UsageError, match=rf"process {os.getpid()} on .*, since .* is writing there"), second:
            raise AssertionError
        held = writer(tmp_path)
        assert held is not None
        assert held.pid == os.getpid()
    assert writer(tmp_path) is None


class Meddling(Watcher):
    """Tries to go on with the run that is just being written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.said: list[str] = []

    def round(self, row: object) -> None:
        for attempt in (
            lambda: resume(self.path),
            lambda: start(small_experiment("fedavg"), out=self.path.parent, name="x"),
        ):
            with pytest.raises(UsageError) as error:
                attempt()
            self.said.append(str(error.value))


def test_a_live_run_is_neither_resumed_nor_written_over(runs: Path) -> None:
    meddling = Meddling(runs / "x")
    start(small_experiment(small_method("fedavg")), out=runs, name="x", watcher=meddling)
    assert ["is writing there" in line or "holds a run already" in line for line in meddling.said] == [True] * 4
    assert [row["round"] for row in RunDir.open(runs / "x").rows()] == [1, 2]


HOLD = """
import os, sys, time
from pathlib import Path
from fedstill.experiment.lock import writing
with writing(Path(sys.argv[1])):
    if os.fork() == 0:
        time.sleep(600)
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_killed_writer_holds_nothing_even_if_its_children_live_on(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "held\n"
        held = writer(tmp_path)
        assert held is not None
        assert held.pid == process.pid
        process.send_signal(signal.SIGKILL)
        process.wait()
        deadline = time.monotonic() + 120
        while writer(tmp_path) is not None and time.monotonic() < deadline:
            time.sleep(0.05)
        with writing(tmp_path):
            pass
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()


def test_fewer_rounds_than_are_done_are_refused_and_a_finished_run_says_so(runs: Path) -> None:
    start(small_experiment(small_method("fedavg")), out=runs, name="x")
    before = {f: f.read_bytes() for f in (runs / "x").rglob("*") if f.is_file() and f.name != ".lock"}
    with pytest.raises(UsageError, match=r"rounds = 1: .*x has done 2 rounds already"):
        resume(runs / "x", rounds=1)
    told: list[str] = []

    class Notes(Watcher):
        def note(self, text: str) -> None:
            told.append(text)

    assert len(resume(runs / "x", watcher=Notes()).rows) == 2
    assert told == ["finished: all 2 rounds are done"]
    assert {f: f.read_bytes() for f in before} == before


def test_a_folder_that_cannot_be_written_to_is_one_line_that_claims_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", Path("/proc/nowhere")):
        with pytest.raises(UsageError, match=r"cannot write there .*choose another --out"):
            start(small_experiment(small_method("fedavg")), out=out)


def test_where_the_disk_is_full_the_lock_is_named_and_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as here:
        here.setattr("os.pwrite", full)
        with pytest.raises(RunError, match=r"/\.lock: cannot write \(No space left on device\)"), writing(tmp_path):
            raise AssertionError
    with writing(tmp_path):
        assert writer(tmp_path) is not None
