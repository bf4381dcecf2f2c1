"""Several models that exist already made into one, without data: `fedstill distil`.

Each model is a .safetensors file that `fedstill export` wrote, with its own recipe: networks may differ, inputs and
classes may not. Models that were trained apart have means and deviations of their own data: each gets the made samples
in its own. The student learns as the server's does in DENSE or Co-Boosting, and takes inputs as the first model does.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor, nn

import fedstill.methods  # noqa: F401 (registers them)
from fedstill.core.errors import UsageError
from fedstill.core.kind import Kind, kind_of
from fedstill.core.method import Env, Method
from fedstill.core.record import State, write
from fedstill.core.value import build_named
from fedstill.data.renormalise import renormalised, same_form
from fedstill.experiment.drive import one_thread
from fedstill.experiment.networks import without_data
from fedstill.experiment.ready import described
from fedstill.experiment.rundir import writable
from fedstill.experiment.signature import recipe_of
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
    signature, weights, about = described(path)
    named = recipe or _named(signature.recipes[0])
    if named is None:
        raise UsageError(f"{path}: does not say which network it is; name one for each file: --models lenet5,cnn1")
    return Given(path, weights, named, signature.class_names, json.loads(about["input"]))


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
    """Make one model out of several and write it to `target`.

    Args:
        files: the models' files, at least two.
        target: the file to be written; it ends in `.safetensors`.
        how: DENSE or Co-Boosting, with its settings.
        model: the network to be made (default: the first file's).
        recipes: the files' networks, where the files do not name them.
        seed: of every random stream.

    Returns:
        The file (`model`), its `network`, its `agreement` with the ensemble, and the `shares` of the files in that.
    """
    if len(files) < 2:
        raise UsageError(f"{len(files)} model: at least two are needed to make one out of them")
    if target.suffix != ".safetensors":
        raise UsageError(f"{target}: must end in .safetensors")
    writable(target.parent)
    if recipes and len(recipes) != len(files):
        raise UsageError(f"models = {', '.join(recipes)}: {len(recipes)} names for {len(files)} files")
    given = [read_model(path, recipe) for path, recipe in zip_longest(files, recipes)]
    _agreed(given)
    first = given[0]
    specs = (*(g.recipe for g in given), model or first.recipe)
    sizes = (1,) * len(given)
    env = without_data(specs, kind_of(first.about["kind"]), len(first.class_names), sizes, seed=seed)
    with one_thread():
        teachers = []
        for place, one in enumerate(given):
            own = without_data(specs, kind_of(one.about["kind"]), len(one.class_names), sizes, seed=seed)
            teacher = _teacher(own, place, one)
            teachers.append(teacher if own.kind == env.kind else _Renormalised(teacher, env.kind, own.kind))
        fused = how.fuse(env, teachers, env.module(env.initial()))
    about = {"class_names": json.dumps(list(first.class_names), ensure_ascii=False), "model": "distilled"}
    about |= {"input": json.dumps(dict(first.about)), "recipe": json.dumps(recipe_of(specs[-1]))}
    write(target, save({name: value.contiguous() for name, value in fused.weights.items()}, metadata=about))
    shares = {str(one.path): share for one, share in zip(given, fused.shares.tolist(), strict=True)}
    return {"model": str(target), "network": specs[-1], "agreement": fused.agreement, "shares": shares}


class _Renormalised(nn.Module):
    """A model that gets inputs normalised as kind `by` does it, and was trained on kind `to`."""

    def __init__(self, model: nn.Module, by: Kind, to: Kind) -> None:
        super().__init__()
        self.model, self.by, self.to_kind = model, by, to

    def forward(self, x: Tensor) -> Tensor:
        """The model's logits."""
        logits: Tensor = self.model(renormalised(x, self.by, self.to_kind))
        return logits


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
        alike = same_form(*(kind_of(one.about["kind"]) for one in (first, other)))
        if not alike or other.about["dtype"] != first.about["dtype"]:
            raise UsageError(
                f"{other.path}: takes other inputs than {first.path}; kind, shape, columns and categories must agree"
            )


def _named(recipe: Mapping[str, Any]) -> str | None:
    name = recipe.get("name") or recipe.get("factory")
    return None if name is None else str(name)
