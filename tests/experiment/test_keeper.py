"""Checkpoints on a thread: written by the next row at the latest, errors are told, and files that nobody needs go."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from fedstill.core.errors import RunError
from fedstill.core.shelf import Shelf, Storage
from fedstill.experiment.keeper import Keeper
from fedstill.experiment.rundir import Checkpoint, RunDir


class Slow(RunDir):
    """Writes a checkpoint when it is let to."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.may = threading.Event()

    def checkpoint(self, state: Checkpoint) -> None:
        """Wait, then write."""
        assert self.may.wait(10)
        super().checkpoint(state)


class Full(RunDir):
    """Has no room."""

    def checkpoint(self, state: Checkpoint) -> None:
        """Fail."""
        raise RunError("no room")


def state(number: int, clients: Any = None) -> Checkpoint:
    return Checkpoint(number, {"w": torch.full((2,), float(number))}, Shelf("clients") if clients is None else clients)


def test_the_run_goes_on_while_a_checkpoint_is_written_and_the_next_row_waits_for_it(tmp_path: Path) -> None:
    folder = Slow(tmp_path)
    with Keeper(folder) as keeper:
        keeper.row({"round": 1})
        keeper.checkpoint(state(1))
        assert folder.latest()[0] is None, "it is not waited for"
        folder.may.set()
        keeper.row({"round": 2})
        found, _ = folder.latest()
        assert found is not None
        assert found.round == 1
    assert [row["round"] for row in folder.rows()] == [1, 2]


def test_what_goes_wrong_on_the_thread_is_raised_at_the_next_call(tmp_path: Path) -> None:
    keeper = Keeper(Full(tmp_path))
    keeper.checkpoint(state(1))
    with pytest.raises(RunError, match="no room"):
        keeper.row({"round": 2})


def test_an_error_of_the_run_is_not_hidden_by_one_of_a_checkpoint(tmp_path: Path) -> None:
    def run() -> None:
        with Keeper(Full(tmp_path)) as keeper:
            keeper.checkpoint(state(1))
            raise KeyError("a client failed")

    with pytest.raises(KeyError, match="a client failed"):
        run()


def test_two_checkpoints_are_kept_with_the_files_they_need(tmp_path: Path) -> None:
    """Client 1 changes every round: the files of the last two rounds stay, and client 2's of round 1."""
    folder = RunDir(tmp_path)
    shelf = Shelf("clients", Storage(tmp_path)).put(0, {2: {"w": torch.ones(1)}})
    for t in range(4):
        shelf = shelf.put(t, {1: {"w": torch.full((1,), float(t))}})
        folder.checkpoint(state(t + 1, shelf))
    assert sorted(f.name for f in (tmp_path / "clients").iterdir()) == [
        f"{n}.safetensors" for n in ("1-2", "1-3", "2-0")
    ]
    assert sorted(f.stem for f in (tmp_path / "checkpoints").glob("*.safetensors")) == ["000003", "000004"]


def test_files_of_values_replaced_between_checkpoints_go_as_well(tmp_path: Path) -> None:
    """Nothing is held in memory, so every value has a file at once; a checkpoint every second round needs half of them.

    After 16 checkpoints (32 rounds) only files that the last two checkpoints need are there, and one of a later round.
    """
    folder = RunDir(tmp_path)
    shelf = Shelf("clients", Storage(tmp_path, limit=0))
    for t in range(32):
        shelf = shelf.put(t, {1: {"w": torch.full((1,), float(t))}})
        if t % 2:
            shelf.put(t + 1, {7: {"w": torch.ones(1)}})  # what the next round writes meanwhile
            folder.checkpoint(state(t + 1, shelf))
    left = sorted(f.stem for f in (tmp_path / "clients").iterdir())
    assert left == ["1-29", "1-31", "7-32"]


def test_going_back_forgets_checkpoints_and_files_that_came_after(tmp_path: Path) -> None:
    folder = RunDir(tmp_path)
    shelf = Shelf("clients", Storage(tmp_path))
    for t in range(2):
        shelf = shelf.put(t, {1: {"w": torch.full((1,), float(t))}})
        folder.append({"round": t + 1})
        folder.checkpoint(state(t + 1, shelf))
    again = RunDir(tmp_path)
    again.rewind(1)
    assert [row["round"] for row in again.rows()] == [1]
    assert [f.stem for f in (tmp_path / "clients").iterdir()] == ["1-0"]
    found, notes = again.latest()
    assert found is not None
    assert (found.round, notes) == (1, [])
