"""What a deployed run agrees on when it begins: which plans can be deployed, and the setting the sites make."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from fedstill.core.errors import DataError, FedstillError, UsageError
from fedstill.data import Dataset, load
from fedstill.data.summary import Summary, agreed, common_classes, pooled, unsound
from fedstill.experiment.config import Experiment
from fedstill.experiment.setting import Setting, with_tuples
from fedstill.experiment.stage import assigned
from fedstill.flower.messages import Enrolled


def settle(run: str, plan: Experiment, enrolled: Mapping[str, Enrolled]) -> Setting:
    """What follows from the sites' introductions; refuses sites that do not fit together."""
    sites = tuple(sorted(enrolled))
    known = [introduced(enrolled[site]) for site in sites]
    agreed(known, [f"site {site}" for site in sites])
    classes = common_classes([party.class_names for party in known])
    if len(classes) < 2:
        raise DataError(f"all sites have one class only ({classes[0]}); at least two are needed")
    plan = replace(plan, data="sites", clients=len(sites), transport="flower")
    base = Setting(
        run, plan.plain(), sites, tuple(enrolled[s].samples for s in sites), tuple(enrolled[s].tests for s in sites),
        classes, pooled(known).plain(), known[0].dtype, min(party.lowest for party in known), (),
    )  # fmt: skip
    return replace(base, specs=_models(plan, base.sample(), [enrolled[site].model for site in sites], sites))


def _models(plan: Experiment, sample: Dataset, asked: Sequence[str], sites: Sequence[str]) -> tuple[str, ...]:
    """Every site's model: its own where it named one, else what the experiment gives it; last the server's."""
    *given, server = assigned(plan, sample)
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


def introduced(site: Enrolled) -> Summary:
    """What a site says of its data, checked as far as that can be done from afar."""
    try:
        known = Summary(**with_tuples(site.summary))
        wrong = unsound(known)
        sound = (
            wrong is None
            and 0 < site.samples <= known.size
            and site.tests >= 0
            and all(isinstance(name, str) for name in known.class_names)
        )
    except (ValueError, TypeError, AttributeError, IndexError, FedstillError):
        sound = False
    if not sound:
        raise DataError("its introduction is not sound")
    return known


def public_set(plan: Experiment, here: str | None) -> Dataset | None:
    """The public set every party has: at `here` on this machine, else where the experiment says."""
    return load(here or plan.public) if isinstance(plan.public, str) else None


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
