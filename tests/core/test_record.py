"""Records survive the disk and the wire; what is damaged, foreign or malformed is refused."""

import errno
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedstill.core.errors import FedstillError
from fedstill.core.record import Carries, carries, declared, dumps, fault, load, loads, record, save, sizes, write


@record
class Leaf:
    tensor: Tensor = carries(Carries.LOGITS)
    count: int = carries(Carries.SIZE, 0)


@record
class Tree:
    leaf: Leaf | None
    named: Any
    row: tuple[Any, ...]


tensors = st.builds(
    lambda shape, kind: torch.arange(torch.Size(shape).numel()).reshape(shape).to(kind),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from([torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool]),
)
scalars = st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False) | st.text(max_size=5)
values = st.recursive(
    scalars | tensors,
    lambda inner: (
        st.dictionaries(st.text(st.characters(codec="ascii", exclude_characters="/"), max_size=4), inner, max_size=3)
        | st.dictionaries(st.integers(0, 99), inner, min_size=1, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
    ),
    max_leaves=6,
)


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, tuple):
        return isinstance(b, tuple) and len(a) == len(b) and all(map(equal, a, b))
    if hasattr(a, "__dataclass_fields__"):
        return type(a) is type(b) and all(equal(getattr(a, f), getattr(b, f)) for f in a.__dataclass_fields__)
    return type(a) is type(b) and a == b


@settings(max_examples=60, deadline=None)
@given(values, tensors)
def test_any_record_comes_back_as_it_was(inner: Any, tensor: Tensor) -> None:
    tree = Tree(Leaf(tensor, 3), {"a": inner}, (inner, tensor))
    assert equal(tree, loads(dumps(tree)))


def test_a_file_that_no_longer_fits_on_the_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")  # the system names no file here

    monkeypatch.setattr("fedstill.core.record.os.fsync", full)
    with pytest.raises(OSError, match="No space left on device") as error:
        write(tmp_path / "x.json", b"{}")
    assert error.value.filename == str(tmp_path / "x.json")
    assert list(tmp_path.iterdir()) == []


def test_on_disk_it_is_whole_or_not_there(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "leaf.safetensors"
    leaf = Leaf(torch.randn(100), 2)
    save(path, leaf)
    assert equal(leaf, load(path))
    assert [p.name for p in path.parent.iterdir()] == ["leaf.safetensors"]
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(FedstillError, match="cut off"):
        load(path)


@pytest.mark.parametrize("junk", [b"", b"1234", b"\x10" * 100, dumps(Leaf(torch.ones(3)))[:-4]])
def test_junk_is_refused(junk: bytes) -> None:
    with pytest.raises(FedstillError):
        loads(junk)


def test_a_foreign_type_is_refused() -> None:
    data = dumps(Leaf(torch.ones(1)))
    with pytest.raises(FedstillError, match="unknown type 'test_record:Leak'"):
        loads(data.replace(b"Leaf", b"Leak"))
    with pytest.raises(TypeError, match="cannot be part of a record"):
        dumps(Tree(None, {"function": print}, ()))


def test_shared_memory_and_layouts_are_written_apart() -> None:
    base = torch.arange(8.0)
    picture = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    back = loads(dumps((base[:4], base[:4], base[4:], picture)))
    assert all(map(torch.equal, back, (base[:4], base[:4], base[4:], picture)))


def test_sizes_by_hand() -> None:
    """4 floats of 4 bytes, a number of 8; a text of three letters, and 2 whole numbers of 8 in a mapping."""
    assert sizes(Leaf(torch.zeros(4), 7)) == {"tensor": 16, "count": 8}
    assert sizes(Tree(None, {"a": torch.zeros(2, dtype=torch.int64)}, ("abc",))) == {"leaf": 0, "named": 16, "row": 3}


def test_a_field_that_does_not_say_what_it_carries_may_not_leave() -> None:
    assert declared(Leaf) == {"tensor": "logits on public samples", "count": "number of samples"}
    with pytest.raises(TypeError, match=r"Tree\.leaf does not declare"):
        declared(Tree)


def test_whole_numbers_are_bounded_too() -> None:
    counts = Leaf(torch.zeros(2, dtype=torch.int64))
    assert fault(Leaf(torch.tensor([3, -(10**10)])), counts) is None
    assert "too large" in str(fault(Leaf(torch.tensor([3, -(2**62)])), counts))
    flags = Leaf(torch.zeros(2, dtype=torch.bool))
    assert fault(Leaf(torch.ones(2, dtype=torch.bool)), flags) is None


@pytest.mark.parametrize(
    ("upload", "wrong"),
    [
        (Leaf(torch.ones(2)), None),
        (Leaf(torch.ones(3)), "shape (3,) instead of (2,)"),
        (Leaf(torch.ones(2, dtype=torch.float64)), "float64 instead of torch.float32"),
        (Leaf(torch.tensor([1.0, float("nan")])), "not finite"),
        (Leaf(torch.tensor([1.0, float("-inf")])), "not finite"),
        (Leaf(torch.tensor([1.0, -1e30])), "too large"),
        (Tree(None, {}, ()), "a Tree instead of a Leaf"),
        (Leaf({"a": torch.ones(2)}), "is missing"),  # type: ignore[arg-type]
    ],
)
def test_faults_are_named(upload: Any, wrong: str | None) -> None:
    found = fault(upload, Leaf(torch.zeros(2)))
    assert found is None if wrong is None else wrong in str(found)


def test_two_records_of_the_package_may_not_share_a_name_and_others_are_called_by_their_module() -> None:
    first = type("Leafy", (), {"__module__": "fedstill.one", "__annotations__": {}})
    second = type("Leafy", (), {"__module__": "fedstill.two", "__annotations__": {}})
    record(first)
    with pytest.raises(TypeError, match="two records are called Leafy"):
        record(second)
    own = record(type("Leafy", (), {"__module__": "somebody.else", "__annotations__": {}}))
    assert type(loads(dumps(own()))) is own


def test_the_header_is_json_anyone_can_read() -> None:
    data = dumps(Leaf(torch.ones(1), 5))
    length = int.from_bytes(data[:8], "little")
    spec = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["spec"])
    assert spec == {"record": "test_record:Leaf", "fields": {"tensor": {"tensor": "/tensor"}, "count": 5}}
