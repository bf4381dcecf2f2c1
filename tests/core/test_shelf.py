"""Shelves: immutable, only for clients seen, in files beyond a limit, and back from a manifest."""

from pathlib import Path

import pytest
import torch

from fedstill.core.record import dumps, loads, record
from fedstill.core.shelf import Shelf, Storage, reopen, shelves


def value(x: float) -> dict[str, torch.Tensor]:
    return {"w": torch.full((10,), x)}  # 40 bytes


def test_putting_leaves_the_old_shelf_as_it_was() -> None:
    empty = Shelf("slots")
    one = empty.put(0, {3: value(1.0)})
    two = one.put(1, {3: value(2.0), 5: value(5.0)})
    assert (len(empty), len(one), list(two)) == (0, 1, [3, 5])
    assert float(one[3]["w"][0]) == 1.0
    assert float(two[3]["w"][0]) == 2.0
    assert two.get(7) is None


def test_beyond_the_limit_entries_live_in_files(tmp_path: Path) -> None:
    """40 bytes each and room for 100: the third goes to a file; replacing one in memory makes no room for it."""
    shelf = Shelf("slots", Storage(tmp_path, limit=100)).put(0, {k: value(float(k)) for k in range(4)})
    assert shelf.held == 80
    assert sorted(p.name for p in (tmp_path / "slots").iterdir()) == ["2-0.safetensors", "3-0.safetensors"]
    assert [float(shelf[k]["w"][0]) for k in range(4)] == [0.0, 1.0, 2.0, 3.0]
    again = shelf.put(1, {0: value(9.0)})
    assert again.held == 80
    assert float(again[0]["w"][0]) == 9.0


def test_a_manifest_brings_it_back_and_new_entries_only_are_written(tmp_path: Path) -> None:
    shelf = Shelf("slots", Storage(tmp_path)).put(0, {1: value(1.0)})
    shelf.save()
    data = dumps((shelf,))
    first = (tmp_path / "slots" / "1-0.safetensors").stat().st_mtime_ns
    more = shelf.put(1, {2: value(2.0)})
    more.save()
    assert (tmp_path / "slots" / "2-1.safetensors").exists()
    assert (tmp_path / "slots" / "1-0.safetensors").stat().st_mtime_ns == first
    back = loads(data, reopen(Storage(tmp_path)))[0]
    assert list(back) == [1]
    assert torch.equal(back[1]["w"], value(1.0)["w"])


def test_writing_a_record_writes_no_shelf_and_an_unsaved_one_is_refused(tmp_path: Path) -> None:
    shelf = Shelf("slots", Storage(tmp_path)).put(0, {4: value(1.0)})
    with pytest.raises(TypeError, match=r"shelf slots: client 4 is not on disk; save the shelf before its record"):
        dumps((shelf,))
    assert list(tmp_path.iterdir()) == []


@record
class Holder:
    inner: dict[str, tuple[Shelf, ...]]


def test_shelves_are_found_wherever_they_are_in_a_record() -> None:
    one, two = Shelf("one"), Shelf("two")
    assert [s.name for s in shelves((Holder({"a": (one,)}), [two], None, 3))] == ["one", "two"]


def test_without_a_folder_a_temporary_one_is_used() -> None:
    storage = Storage(None, limit=0)
    shelf = Shelf("slots", storage).put(0, {1: value(1.0)})
    assert storage.path.exists()
    assert float(shelf[1]["w"][0]) == 1.0
