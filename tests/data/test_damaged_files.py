"""Files made to burst or to crash their reader: one line each, never a dead process."""

import io
import random
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedstill.core.errors import DataError
from fedstill.data import load
from fedstill.data.files import read_svhn


def _png(width: int, height: int) -> bytes:
    """A PNG of so many pixels whose data are a few bytes: they would unfold to width × height."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 1000)) + chunk(b"IEND", b"")
    )


def folder(where: Path, bad: bytes, suffix: str = ".png") -> Path:
    """An image folder of two classes, one of whose files has these bytes."""
    for name in ("cat", "dog"):
        (where / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), 100, np.uint8)).save(where / name / "a.png")
    (where / "dog" / f"b{suffix}").write_bytes(bad)
    return where


@pytest.mark.parametrize("side", [60_000, 12_000])
def test_an_image_that_claims_too_many_pixels_is_named(tmp_path: Path, side: int) -> None:
    """3.6 billion pixels are more than Pillow opens, 144 million more than it opens without a warning."""
    with pytest.raises(DataError, match=r"b\.png: more than 89,478,485 pixels"):
        load(folder(tmp_path, _png(side, side)))


def test_a_damaged_image_is_named_whatever_its_format(tmp_path: Path) -> None:
    """Five formats, forty changes each: read, or one line that names the file."""
    stream = random.Random(5)
    named = []
    for kind in ("PNG", "JPEG", "BMP", "GIF", "TIFF"):
        made = io.BytesIO()
        Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(made, kind)
        for _ in range(40):
            data = bytearray(made.getvalue())
            for _ in range(3):
                at = stream.randrange(len(data))
                data[at : at + stream.randrange(1, 9)] = stream.randbytes(stream.randrange(9))
            try:
                load(folder(tmp_path / kind, bytes(data), f".{kind.lower()}"))
            except DataError as error:
                named.append(str(error))
        assert all(f"b.{kind.lower()}" in line for line in named if f"/{kind}/" in line)
    assert len(named) > 50
    assert not any("\n" in line for line in named)


def test_a_file_that_crashes_scipys_reader_is_one_line(tmp_path: Path) -> None:
    """One byte of the array's flags changed: SciPy's reader would end the whole process with a segmentation fault."""
    from scipy.io import savemat

    good = {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([[10], [3]], np.uint8)}
    for part in ("train", "test"):
        savemat(tmp_path / f"{part}_32x32.mat", good)
    read = read_svhn(tmp_path)
    assert read["x_train"].shape == (2, 3, 32, 32)
    assert read["y_train"].tolist() == [0, 3]
    bad = tmp_path / "train_32x32.mat"
    spoilt = bytearray(bad.read_bytes())
    spoilt[145] = 9
    bad.write_bytes(bytes(spoilt))
    with pytest.raises(DataError, match=r"train_32x32\.mat: damaged or cut short.*its reader crashed"):
        read_svhn(tmp_path)
    savemat(bad, {"X": "text", "y": good["y"]})
    with pytest.raises(DataError, match=r"train_32x32\.mat: .*X must be numbers"):
        read_svhn(tmp_path)
    savemat(bad, {"Z": 1})
    with pytest.raises(DataError, match=r"train_32x32\.mat: .*KeyError: 'X'"):
        read_svhn(tmp_path)
