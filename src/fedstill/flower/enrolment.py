"""What a deployed run agrees on when it begins: which plans can be deployed, and the setting the sites make."""

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from fedstill.core.errors import DataError, FedstillError, UsageError
from fedstill.core.kind import kind_of, sides
from fedstill.core.value import plain
from fedstill.data import Dataset, datasets, load
from fedstill.data.kinds import Table
from fedstill.data.summary import Summary, agreed, common_classes, pooled, unsound
from fedstill.experiment.config import Experiment
from fedstill.experiment.networks import assigned
from fedstill.experiment.setting import Setting, with_tuples
from fedstill.flower.caps import capped, far_ones, weighed
from fedstill.flower.messages import LARGEST_SAMPLE, MOST_CLASSES, Enrolled, first_fault, plain_names, readable
from fedstill.models.registry import models


def settle(run: str, run_id: str, plan: Experiment, enrolled: Mapping[str, Enrolled]) -> Setting:
    """What follows from the sites' introductions; refuses sites that do not fit together."""
    sites = tuple(sorted(enrolled))
    known = [introduced(enrolled[site]) for site in sites]
    agreed(known, [f"site {site}" for site in sites])
    classes = common_classes([party.class_names for party in known])
    if len(classes) < 2:
        raise DataError(f"all sites have one class only ({classes[0]}); at least two are needed")
    plan = replace(plan, data="sites", clients=len(sites), transport="flower")
    sizes = tuple(enrolled[s].samples for s in sites)
    counted = capped(sizes, plan.largest_share)
    known = [weighed(party, count / size) for party, size, count in zip(known, sizes, counted, strict=True)]
    tests = tuple(enrolled[s].tests for s in sites)
    base = Setting(
        run, plan.plain(), sites, sizes, tests, classes, pooled(known).plain(), known[0].dtype,
        min(party.lowest for party in known), (), run_id, () if counted == sizes else counted,
    )  # fmt: skip
    return replace(base, specs=_models(plan, base.sample(), [enrolled[site].model for site in sites], sites))


def _models(plan: Experiment, sample: Dataset, asked: Sequence[str], sites: Sequence[str]) -> tuple[str, ...]:
    """Every site's model: its own where it named one, else what the experiment gives it; last the server's."""
    *given, server = assigned(plan, sample)
    for site, model in zip(sites, asked, strict=True):
        if refused := misnamed(model, (*given, server)):
            raise UsageError(f"site {site}: {refused}")
    chosen = [mine if mine != "auto" else theirs for mine, theirs in zip(asked, given, strict=True)]
    if plan.method.one_architecture:
        if plan.model == "auto" and not plan.models and asked[0] != "auto":
            server = asked[0]
            chosen = [mine if mine != "auto" else server for mine in asked]
        for site, model in zip(sites, chosen, strict=True):
            if model != server:
                raise UsageError(f"site {site} has model {model}: {plan.title} averages weights, all need {server}")
    elif plan.server_model is None and not plan.models and plan.model == "auto":
        server = chosen[0]
    return (*chosen, server)


def misnamed(model: str, named: Sequence[str]) -> str | None:
    """Why the hub does not take a model by this name from a site: code that only a site names is never imported."""
    if model == "auto" or model in named or (":" not in model and model in models):
        return None
    return f"model {model!r}: neither one of fedstill's ({', '.join(models)}) nor named by the experiment"


def introduced(site: Enrolled) -> Summary:
    """What a site says of its data, as far as that can be believed from afar."""
    known = Summary(**with_tuples(site.summary.model_dump_json()))
    try:
        wrong = unsound(known) or oversized(known.kind)
    except (FedstillError, ValueError, TypeError, IndexError) as error:
        wrong = str(error)
    if wrong:
        raise DataError(f"its introduction is not sound: {readable(wrong)}")
    return known


def odd_ones(enrolled: Mapping[str, Enrolled]) -> dict[str, str]:
    """The sites whose samples have another form than those of most, or numbers far from theirs; what to say of them."""
    forms = {site: _form(introduction) for site, introduction in enrolled.items()}
    counted = Counter(forms.values()).most_common(2)
    if len(counted) > 1 and counted[0][1] == counted[1][1]:
        return {}  # nobody is in the majority
    usual = counted[0][0] if counted else ""
    others = {
        site: f"its samples are {form}, those of most sites {usual}" for site, form in forms.items() if form != usual
    }
    alike = {site: introduction.summary for site, introduction in enrolled.items() if site not in others}
    return {**others, **far_ones(alike)}


def _form(site: Enrolled) -> str:
    """The form of a site's samples in a few words: kind, type, and sides or columns."""
    kind = kind_of(site.summary.kind)
    columns = sorted(kind.columns) if isinstance(kind, Table) else []
    return " ".join([str(site.summary.kind["name"]), site.summary.dtype, *(columns or [sides(kind.shape)])])


def oversized(kind: Mapping[str, object]) -> str | None:
    """Why samples of this kind are too large to be taken from a stranger; None where they are not."""
    shape = kind_of(kind).shape
    if min(shape, default=1) < 1 or math.prod(shape) > LARGEST_SAMPLE:
        return f"samples of {sides(shape)}: at most {LARGEST_SAMPLE:,} numbers"
    return None


_settings: TypeAdapter[Setting] = TypeAdapter(Setting)


def read_setting(text: str) -> Setting:
    """A setting from its JSON, as it came from a hub: every field of its type, or it is refused."""
    try:
        setting = _settings.validate_json(text, strict=True)
    except ValidationError as error:
        where, why = first_fault(error)
        raise DataError(f"setting.{where}: {readable(why)}") from None
    counts = {len(setting.sites), len(setting.sizes), len(setting.tests), len(setting.specs) - 1}
    if len(counts) != 1 or (setting.counted and len(setting.counted) != len(setting.sites)):
        raise DataError("setting: sites, sizes, tests and models must be as many")
    if len(set(setting.sites)) != len(setting.sites):
        raise DataError("setting: a site that is there twice")
    if not _finite((setting.lowest, setting.kind, setting.experiment)):
        raise DataError("setting: a number that is not finite")
    wrong = plain_names(setting.kind) or oversized(setting.kind)
    if wrong is not None or len(setting.class_names) > MOST_CLASSES:
        raise DataError(f"setting: {wrong or 'too many classes'}")
    return setting


def _finite(value: Any) -> bool:
    """Are all numbers in a plain value finite?"""
    if isinstance(value, Mapping):
        return all(map(_finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def public_set(plan: Experiment, here: str | None) -> Dataset | None:
    """The public set every party has: at `here` on this machine, else by the name that the experiment gives.

    A path on this machine is for whoever keeps it to name, never for whoever wrote the experiment.
    """
    if not isinstance(plan.public, str):
        return None
    if here is None and plan.public not in datasets:
        raise UsageError(f"public = {plan.public!r}: start hub and sites with --public and their own path to it")
    return load(here or plan.public)


def checksum(dataset: Dataset | None) -> str:
    """A checksum of a data set's training samples, so that parties can tell that they have the same."""
    if dataset is None:
        return ""
    data = hashlib.sha256(dataset.train.x.numpy().tobytes())
    data.update(dataset.train.y.numpy().tobytes())
    return data.hexdigest()[:16]


def deployable(plan: Experiment) -> Experiment:
    """The plan for sites, or why it cannot be deployed."""
    if plan.attack is not None:
        raise UsageError("attack: sites are real; attacks can only be simulated (fedstill run)")
    if plan.drop:
        raise UsageError(f"drop = {plan.drop}: sites are real; drop-outs can only be simulated (fedstill run)")
    if plan.pace is not None:
        raise UsageError(
            f"pace = {plain(plan.pace)['name']}: sites have speeds of their own; a pace can only be simulated"
        )
    if plan.metric != "accuracy" or plan.metrics:
        raise UsageError("metric: sites send counts of right answers only, so a deployed run reports accuracy")
    if plan.public is not None and not isinstance(plan.public, str):
        raise UsageError(
            f"public = {plan.public}: {plan.title} needs a public set that the hub and every site can read; "
            "name a data set or a path"
        )
    if not all(isinstance(spec, str) for spec in (plan.model, plan.server_model or "")):
        raise UsageError("model: a deployed experiment names its models; objects cannot travel")
    return replace(plan, data="sites", transport="flower")
