"""A run's model for others: `push` puts it with its card into a folder or on the Hugging Face hub, `pull` gets it.

What is published is weights (safetensors, never pickle), what using them needs (`signature.json`) and the card. The
sizes of single clients and paths of the machine are left out.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from fedstill.core.errors import DataError, RunError, UsageError, extra
from fedstill.experiment.export import write_ready
from fedstill.experiment.ready import WEIGHTS, load_model
from fedstill.experiment.result import Result
from fedstill.experiment.signature import FILE
from fedstill.report.model_card import card, without_folder

HUB = "hf://"
"""How the address of a model on the Hugging Face hub starts: hf://owner/name."""
CHECKSUMS = "checksums.json"


def push(
    run: Path,
    target: str,
    which: str | None = None,
    *,
    public: bool = False,
    license: str | None = None,
    endpoint: str | None = None,
) -> str:
    """Publish a run's model with its card.

    Args:
        run: the run's folder.
        target: a folder that is not there yet, or `hf://owner/name`.
        which: the model's name in the run (default: the one it is judged by).
        public: whether anybody may see a new repository on the hub.
        license: of the model, for the card.
        endpoint: another hub than the usual one.

    Returns:
        Where it is now.
    """
    name = target.removeprefix(HUB)
    if target.startswith(HUB):
        if name.count("/") != 1 or not all(name.split("/")):
            raise UsageError(f"{target}: must be hf://owner/name")
        with tempfile.TemporaryDirectory() as room:
            write_package(run, Path(room), which, name, license, target)
            return _upload(Path(room), name, public, endpoint)
    folder = Path(target)
    _vacant(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as room:  # nothing is left of what could not be written
            write_package(run, Path(room), which, folder.name, license)
            folder.mkdir(exist_ok=True)
            for file in Path(room).iterdir():
                file.replace(folder / file.name)
    except OSError as error:
        raise UsageError(f"{folder}: cannot write there ({error.strerror or error})") from None
    return str(folder)


def write_package(
    run: Path, folder: Path, which: str | None, title: str, license: str | None, address: str = "FOLDER"
) -> None:
    """Write the files of a published model into a folder; its card says that it is pulled from `address`."""
    ready = load_model(run, which)
    about = card(Result.read(run), ready.name, ready.signature, title, license, address)
    (folder / "README.md").write_text(about, "utf-8")
    kind = without_folder(ready.signature.kind)
    ready.signature = replace(ready.signature, kind=kind, recipes=(ready.recipe,), of=(0,), sizes=())
    write_ready(ready, folder / WEIGHTS)
    ready.signature.save(folder)
    sums = {name: _checksum(folder / name) for name in (WEIGHTS, FILE)}
    (folder / CHECKSUMS).write_text(json.dumps(sums, indent=1) + "\n", "utf-8")


def pull(source: str, folder: Path, *, revision: str | None = None, endpoint: str | None = None) -> str:
    """Get a published model; `fedstill predict`, `export` and `fedstill.load_model` take the folder as a run's.

    Args:
        source: `hf://owner/name`, or a folder that `push` wrote.
        folder: where it goes; not there yet, or empty.
        revision: on the hub, the commit, tag or branch.
        endpoint: another hub than the usual one.

    Returns:
        What was got, in a line.
    """
    _vacant(folder)
    with tempfile.TemporaryDirectory() as room:
        got = Path(room) / "got"
        if source.startswith(HUB):
            _download(source.removeprefix(HUB), got, revision, endpoint)
        elif Path(source).is_dir():
            shutil.copytree(source, got)
        else:
            raise UsageError(f"{source}: no such folder; on the hub it would be hf://owner/name")
        check(got, source)
        shutil.copytree(got, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".cache"))
    ready_name = json.loads((folder / FILE).read_text())["recipes"][0]
    return f"{source} → {folder} ({', '.join(map(str, ready_name.values()))})"


def _vacant(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder}: holds something already; choose another folder")


def check(folder: Path, source: str) -> None:
    """Refuse what is no published model, or was changed on its way."""
    missing = [name for name in (WEIGHTS, FILE, CHECKSUMS) if not (folder / name).is_file()]
    if missing:
        raise DataError(f"{source}: is no model that fedstill published (no {', '.join(missing)})")
    for name, sum in json.loads((folder / CHECKSUMS).read_text()).items():
        if name not in (WEIGHTS, FILE) or _checksum(folder / name) != sum:
            raise DataError(f"{source}: {name} is not what was published (its checksum differs)")


def _checksum(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _upload(folder: Path, name: str, public: bool, endpoint: str | None) -> str:
    with _hub() as hub:
        api = hub.HfApi(endpoint=endpoint)
        address = api.create_repo(name, private=not public, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder, commit_message="A model made with fedstill")
        return str(address)


def _download(name: str, folder: Path, revision: str | None, endpoint: str | None) -> None:
    with _hub() as hub:
        files = [WEIGHTS, FILE, CHECKSUMS, "README.md"]  # nothing else is wanted, whatever else is there
        hub.snapshot_download(
            name, revision=revision, local_dir=folder, endpoint=endpoint, allow_patterns=files, max_workers=1
        )


@contextmanager
def _hub() -> Iterator[Any]:
    """Hugging Face's library; what goes wrong there is one line."""
    with extra("hub", "hf://"):
        hub, utils, errors = (import_module(f"huggingface_hub{part}") for part in ("", ".utils", ".errors"))
    utils.disable_progress_bars()
    try:
        yield hub
    except errors.LocalTokenNotFoundError:
        raise UsageError("hf://: sign in first (`hf auth login`), or set HF_TOKEN") from None
    except (errors.HfHubHTTPError, OSError, ValueError) as error:
        raise RunError(f"the hub refused: {' '.join(str(error).split())}") from error
