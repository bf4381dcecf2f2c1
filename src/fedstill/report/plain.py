"""What happened, told to people at the sites: training together, what each gained, what left, what privacy cost."""

from collections.abc import Mapping, Sequence
from html import escape
from statistics import fmean

from fedstill.core.errors import FedstillError
from fedstill.core.method import methods
from fedstill.experiment.result import Result
from fedstill.report.digest import Series, chapters
from fedstill.report.privacy import left_clients, spent
from fedstill.report.sites import ALONE, is_alone, served
from fedstill.report.terminal import size

TOLD = 4
"""Of so many experiments, at most, the page tells in plain words."""
NAMED = 6
"""So many sites, at most, are called by name in a sentence."""


def story(series: Sequence[Series]) -> str:
    """A paragraph for every experiment whose clients are sites with names; empty where there is none."""
    paragraphs = []
    for inside in chapters(series).values():
        alone: Mapping[str, float] = {}
        for line in filter(is_alone, inside):
            alone = served(line.runs, line.model)
        together = [line for line in inside if line.runs[0].client_names and _federated(line)]
        for line in together:
            if line.model == line.runs[0].principal:
                paragraphs.append(" ".join(_sentences(line, alone)))
    return "".join(f"<p>{escape(text)}</p>" for text in paragraphs[:TOLD])


def _federated(line: Series) -> bool:
    """Do the sites train together, and keep their data? Not where each trains alone, or all data are in one place."""
    try:
        known = methods[line.runs[0].experiment["method"]["name"]]
    except FedstillError:
        return True  # a method of somebody's own, which is not here
    return known.federated and not is_alone(line)


def _sentences(line: Series, alone: Mapping[str, float]) -> list[str]:
    run = line.runs[0]
    return [_together(line), _against(line, alone), _left(run), _privacy(run)]


def _together(line: Series) -> str:
    run = line.runs[0]
    metric, names = run.metric("amp"), run.client_names
    by_site = served(line.runs, line.model)
    trained = f"{len(names)} sites ({_listed(names)}) trained together with {line.group} for {_rounds(run)}"
    if not by_site:
        return f"{trained}; nothing was tested."
    worst = min(by_site, key=lambda name: metric.direction * by_site[name])
    mean = fmean(run.last(line.model)["amp"] for run in line.runs)
    return (
        f"{trained}. On the sites' own tests the {line.model} model reaches {metric.text(mean)} {metric.unit} "
        f"({metric.about}), and {metric.text(by_site[worst])} {metric.unit} at {worst}, the site served worst."
    )


def _against(line: Series, alone: Mapping[str, float]) -> str:
    if not alone:
        return f"What each site gained against training alone is not known here: that takes a run of {ALONE}."
    metric, by_site = line.runs[0].metric("amp"), served(line.runs, line.model)
    groups: dict[str, list[str]] = {"better": [], "the same": [], "worse": []}
    for name in by_site.keys() & alone.keys():
        gap = metric.factor * (by_site[name] - alone[name])
        shown = f"{gap:+.{metric.digits}f}"
        even = float(shown) == 0
        word = "the same" if even else "better" if metric.direction * gap > 0 else "worse"
        unit = "points" if metric.unit == "%" else metric.unit
        groups[word].append(name if even else f"{name} ({shown} {unit})")
    told = [f"{word} at {_listed(sorted(names))}" for word, names in groups.items() if names]
    return f"Against training alone this is {', '.join(told)}."


def _left(run: Result) -> str:
    """The fields that left, in the method's own words, and how many bytes a site sent in a round."""
    sent, answers = (
        run.bytes_by_field()["up"],
        sum(len(row["active"]) - len(row.get("missing", {})) for row in run.rows),
    )
    declared = left_clients(run.experiment)
    fields = "; ".join(f"{name}: {declared.get(name, 'not declared')}" for name in sent)
    each = size(sum(sent.values()) / max(1, answers))
    return f"What left a site, {each} a round: {fields}. All else stayed there." if sent else "Nothing left a site."


def _privacy(run: Result) -> str:
    rounds = spent(run.rows)
    if not rounds:
        return "No noise was added, so there is no guarantee of what cannot be read off it."
    last = rounds[-1]
    hidden = {"any one sample": [client for client in last.epsilon if client != "all"], "any one site": ["all"]}
    promises = []
    for whom, clients in hidden.items():
        known = {client: last.epsilon[client] for client in clients if client in last.epsilon}
        if known:
            most = max(known, key=lambda client: known[client])
            named = most.isdigit() and int(most) < len(run.client_names)
            where = f", at {run.client_names[int(most)]}" if named else ""
            promises.append(f"{whom}: at most ε = {known[most]:.3g} at δ = {last.delta[most]:g} was spent{where}")
    return f"The noise in it hides {'; and '.join(promises)}; the smaller ε, the less can be told."


def _rounds(run: Result) -> str:
    return f"{len(run.rows)} round{'s' * (len(run.rows) != 1)}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more
