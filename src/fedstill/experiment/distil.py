"""Several models that exist already made into one, without data: `fedstill distil`.

Each model is a .safetensors file that `fedstill export` wrote, with its own recipe: networks may differ, inputs and
classes may not. The student learns as the server's does in DENSE or Co-Boosting.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

import fedstill.methods  # noqa: F401 (registers them)
from fedstill.core.errors import DataError, UsageError
from fedstill.core.kind import kind_of
from fedstill.core.method import Env, Method
from fedstill.core.record import State
from fedstill.core.value import build_named
from fedstill.data import Samples
from fedstill.data.pixels import fit
from fedstill.experiment.drive import one_thread
from fedstill.experiment.stage import builder, pixels_of
from fedstill.parts.one_shot import OneShot


@dataclass(frozen=True)
class Given:
    """A model's file: its weights, its recipe, and what it says of its inputs and classes."""

    path: Path
    weights: State
    recipe: str
    class_names: tuple[str, ...]
    about: Mapping[str, Any]
    """Kind, type and range of its inputs."""


def read_model(path: Path, recipe: str | None = None) -> Given:
    """A model's file; `recipe` names the network where the file does not."""
    try:
        with safe_open(path, framework="pt") as file:
            told = file.metadata() or {}
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except (SafetensorError, OSError) as error:
        raise DataError(f"{path}: not a .safetensors file that can be read ({error})") from None
    if "class_names" not in told or "input" not in told:
        raise DataError(f"{path}: says nothing of its inputs and classes; write it with `fedstill export`")
    named = recipe or _named(json.loads(told.get("recipe", "{}")))
    if named is None:
        raise UsageError(f"{path}: does not say which network it is; name one for each file: --models lenet5,cnn1")
    return Given(path, weights, named, tuple(json.loads(told["class_names"])), json.loads(told["input"]))


def fusion(name: str, settings: Mapping[str, Any]) -> OneShot:
    """DENSE or Co-Boosting by name, with these settings."""
    made = build_named(Method, {"name": name, **settings})  # type: ignore[type-abstract]
    if not isinstance(made, OneShot):
        raise UsageError(f"method = {name}: does not fuse models without data; must be co-boosting or dense")
    return made


def distil(
    files: Sequence[Path],
    target: Path,
    how: OneShot,
    *,
    model: str | None = None,
    recipes: Sequence[str] = (),
    seed: int = 1,
) -> dict[str, Any]:
    """Make one model out of several and write it to `target`; return what is worth saying of it.

    `files`: at least two; `how`: DENSE or Co-Boosting, with its settings; `model`: the network to be made (default: the
    first file's); `recipes`: the files' networks, where they do not say; `seed`: of every random stream.
    """
    if len(files) < 2:
        raise UsageError(f"{len(files)} model: at least two are needed to make one out of them")
    if target.suffix != ".safetensors":
        raise UsageError(f"{target}: must end in .safetensors")
    if recipes and len(recipes) != len(files):
        raise UsageError(f"models = {', '.join(recipes)}: {len(recipes)} names for {len(files)} files")
    given = [read_model(path, recipe) for path, recipe in zip_longest(files, recipes)]
    _agreed(given)
    first = given[0]
    specs = (*(g.recipe for g in given), model or first.recipe)
    env = _env(specs, first, seed)
    with one_thread():
        teachers = [_teacher(env, place, one) for place, one in enumerate(given)]
        found = how.fuse(env, teachers, env.module(env.initial()))
    told = {"class_names": json.dumps(list(first.class_names), ensure_ascii=False), "model": "distilled"}
    told |= {"input": json.dumps(dict(first.about)), "recipe": json.dumps(_recipe(specs[-1]))}
    target.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: value.contiguous() for name, value in found.weights.items()}, target, metadata=told)
    shares = {str(one.path): share for one, share in zip(given, found.shares.tolist(), strict=True)}
    return {"model": str(target), "network": specs[-1], "agreement": found.agreement, "shares": shares}


def _env(specs: tuple[str, ...], first: Given, seed: int) -> Env:
    """The set-up that all models share."""
    brought = kind_of(first.about["kind"])
    blank = Samples(brought.blank(1), torch.zeros(1, dtype=torch.int64), brought)
    kind = fit(blank, pixels_of(specs)).kind
    classes = len(first.class_names)
    return Env(
        seed=seed, sizes=(1,) * (len(specs) - 1), classes=classes, kind=kind, build=builder(specs, kind, classes)
    )


def _teacher(env: Env, place: int, one: Given) -> nn.Module:
    try:
        return env.module(one.weights, place)
    except RuntimeError as error:
        why = str(error).splitlines()[-1].strip()
        raise UsageError(f"{one.path}: its weights are not those of {one.recipe} ({why})") from None


def _agreed(given: Sequence[Given]) -> None:
    """Refuse models of different classes or inputs, by the file that differs."""
    first = given[0]
    for other in given[1:]:
        if other.class_names != first.class_names:
            raise UsageError(
                f"{other.path}: its classes are not those of {first.path}; all must have the same, in order"
            )
        if other.about["kind"] != first.about["kind"] or other.about["dtype"] != first.about["dtype"]:
            raise UsageError(
                f"{other.path}: takes other inputs than {first.path}; kind, shape and normalisation must agree"
            )


def _named(recipe: Mapping[str, Any]) -> str | None:
    found = recipe.get("name") or recipe.get("factory")
    return None if found is None else str(found)


def _recipe(spec: str) -> dict[str, str]:
    return {"factory": spec} if ":" in spec else {"name": spec}
