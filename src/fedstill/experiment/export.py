"""Using a run's model elsewhere: classify a file, write the model as ONNX, torch.export or safetensors."""

import io
import json
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from fedstill.core.errors import DataError, RunError, UsageError, extra
from fedstill.core.kind import sides
from fedstill.core.record import separate, write
from fedstill.data.folder import DEEP, common_mode, pixels_of
from fedstill.experiment.ready import Ready, load_model

TOLERANCE = 1e-3
"""How far the logits of an exported model may be from the module's, beside their size."""


def classify(path: Path, file: Path, which: str | None = None, model: Any = None) -> dict[str, Any]:
    """The classes of what is in a file, most likely first, by the run in folder `path`.

    `file`: an image, or a .npy file with one sample of any kind; `which`: the model's name in the run.
    """
    ready = load_model(path, which, model=model)
    shares = ready.probabilities(_read(file, ready))
    if len(shares) != 1:
        raise UsageError(f"{file}: holds {len(shares)} samples; an .npz file with them as x may hold many")
    order = shares[0].argsort(descending=True).tolist()
    return {"model": ready.name, "probabilities": {ready.class_names[c]: float(shares[0, c]) for c in order}}


def _read(file: Path, ready: Ready) -> Any:
    """What is in a file, in the units of the run's data."""
    if not file.exists():
        raise UsageError(f"{file}: no such file")
    if file.suffix == ".npy":
        try:
            return np.load(file, allow_pickle=False)
        except (ValueError, OSError) as error:
            raise DataError(f"{file}: not an array that can be read ({error})") from None
    kind = ready.signature.kind
    if kind["name"] != "image":
        raise UsageError(
            f"{file}: the run's data are no images ({kind['name']}); give one sample as a .npy file, "
            "or many as x in an .npz file"
        )
    return _image(file, tuple(kind["shape"]), ready.units)


def _image(file: Path, shape: tuple[int, ...], units: tuple[float, float]) -> Any:
    """An image file in the size, colours and units of the run's data."""
    from PIL import Image, UnidentifiedImageError

    channels, height, width = shape
    if channels not in (1, 3):
        raise UsageError(f"{file}: the run's images have {channels} channels; give one sample as a .npy file")
    try:
        with Image.open(file) as picture:
            deep = channels == 1 and common_mode([picture.mode]) == DEEP
            pixels = pixels_of(picture, (width, height), DEEP if deep else "L" if channels == 1 else "RGB")[None]
    except (UnidentifiedImageError, OSError) as error:
        raise DataError(f"{file}: not an image that can be read ({error})") from None
    black, white = units
    if (black, white) == (0, 255):
        return (pixels * 255).round().astype(np.uint8) if deep else pixels
    return (black + (white - black) * (pixels if deep else pixels / 255)).astype(np.float32)


def write_model(path: Path, target: Path, which: str | None = None, model: Any = None) -> str:
    """Write a model of the run in folder `path`, and say what was written.

    `target` ends in .onnx, .pt2 (torch.export) or .safetensors; the first two take raw inputs, the third holds the
    weights. Folders are made; a file appears only when it is whole. `which`: the model's name in the run.
    """
    if target.suffix not in WAYS:
        raise UsageError(f"{target}: must end in {', '.join(WAYS)}")
    ready = load_model(path, which, model=model)
    write_ready(ready, target)
    count = sum(p.numel() for p in ready.parameters())
    kind, signature = ready.signature.brought, ready.signature
    takes = f"takes raw {kind.plural}, {signature.dtype} {sides(tuple(kind.blank(1).shape[1:]))}"
    return f"{ready.name} → {target} ({count:,} parameters, {takes})"


def write_ready(ready: Ready, target: Path) -> None:
    """Write a model that is loaded already; `target` as of `write_model`."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            made = Path(folder) / target.name
            WAYS[target.suffix](ready, made)
            made.replace(target)
    except OSError as error:
        raise UsageError(f"{target}: cannot write there ({error.strerror or error})") from None


def description(ready: Ready) -> dict[str, str]:
    """What a model's file says of itself: its class names, its network, the kind and units of its inputs."""
    signature = ready.signature
    units = {"dtype": signature.dtype, "low": signature.low, "high": signature.high}
    return {
        "class_names": json.dumps(list(ready.class_names), ensure_ascii=False),
        "model": ready.name,
        "recipe": json.dumps(dict(ready.recipe)),
        "input": json.dumps({"kind": signature.kind, **units, "reading": signature.reading}),
    }


def _weights(ready: Ready, file: Path) -> None:
    write(file, save(separate(ready.classifier.state_dict()), metadata=description(ready)))


def _torch_export(ready: Ready, file: Path) -> None:
    batch = torch.export.Dim("batch")
    with _quiet():
        program = torch.export.export(ready, (_example(ready, 2),), dynamic_shapes=({0: batch},))
        torch.export.save(program, whole := io.BytesIO(), extra_files=description(ready))
    write(file, whole.getvalue())


def _onnx(ready: Ready, file: Path) -> None:
    """One file, with preprocessing inside the graph and the classes in its metadata; checked where it can be run."""
    with extra("onnx", f"{file.name}: ONNX"):
        import onnxscript  # noqa: F401
    with _quiet():
        program = torch.onnx.export(
            ready, (_example(ready, 2),), input_names=["inputs"], output_names=["logits"],
            dynamic_shapes=({0: torch.export.Dim("batch")},), dynamo=True, verbose=False,
        )  # fmt: skip
    assert program is not None
    program.model.metadata_props.update(description(ready))
    program.save(str(file), external_data=False)
    _checked(ready, file)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what PyTorch's exporter says of its own deprecations and of packages that are not there."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


def _checked(ready: Ready, file: Path) -> None:
    """Refuse an ONNX file that gives other classes than the module."""
    try:
        import onnxruntime  # type: ignore[import-untyped]
    except ImportError:
        return
    onnxruntime.set_default_logger_severity(3)
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    example = _example(ready, 3)
    (got,) = session.run(None, {"inputs": example.numpy()})
    with torch.no_grad():
        want = ready(example)
    if not torch.allclose(torch.from_numpy(got), want, rtol=TOLERANCE, atol=TOLERANCE * float(want.abs().max() + 1)):
        raise RunError(f"{file.name}: onnxruntime gives other logits than the module; nothing was written")


def _example(ready: Ready, count: int) -> Tensor:
    """Raw inputs that vary: noise in the units of the data."""
    signature = ready.signature
    kind, stream = signature.brought, torch.Generator().manual_seed(0)
    if signature.low is None or signature.high is None:
        return kind.shown(kind.noise(count, stream)).to(signature.stored)
    values = signature.low + (signature.high - signature.low) * torch.rand(kind.blank(count).shape, generator=stream)
    return (values if signature.stored.is_floating_point else values.floor()).to(signature.stored)


WAYS: dict[str, Callable[[Ready, Path], None]] = {".onnx": _onnx, ".pt2": _torch_export, ".safetensors": _weights}
"""How a model is written, by how its file ends."""
