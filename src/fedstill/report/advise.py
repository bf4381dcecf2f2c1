"""Which method should I use? Three candidates for a situation, why, what leaves a client, what it costs, the command.

What a method needs and sends is read from the registry; how well it did, from the leaderboard's records.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import get_args

from rich.console import Console
from rich.text import Text

from fedstill.core.errors import RunError, UsageError
from fedstill.core.method import MadeFor, methods
from fedstill.core.record import Carries
from fedstill.core.turn import AnyMethod
from fedstill.experiment.archive import Archive
from fedstill.experiment.leaderboard import Standing, leagues
from fedstill.experiment.presets import read_preset
from fedstill.report.privacy import coverage

HERE = Path("results")
"""Where a clone of the project has its records."""
NEUTRAL = frozenset({Carries.SIZE, Carries.STEPS, Carries.VERSION, Carries.ROWS})
"""Counts that say little of the samples: whoever shares anything shares these."""
SHARES: Mapping[str, frozenset[str]] = {
    "weights": frozenset({Carries.WEIGHTS, Carries.CONTROL, Carries.CHANGE, Carries.COMPRESSED}),
    "logits": frozenset({Carries.LOGITS}),
    "statistics": frozenset(
        {
            Carries.LABEL_COUNTS,
            Carries.PRESENCE,
            Carries.LACK,
            Carries.FEATURES,
            Carries.PROTOTYPES,
            Carries.CLASS_LOGITS,
            Carries.CLASS_PREDICTIONS,
            Carries.LOSS,
        }
    ),
    "generators": frozenset({Carries.GENERATOR, Carries.DISCRIMINATOR, Carries.PREDICTIONS}),
}
"""What a user may say that clients can share, and what it allows."""
SKEWED, SELDOM = 1.0, 0.5
"""Below such an α clients' labels differ much; below such a share of active clients many are unheard of in a round."""


@dataclass(frozen=True)
class Situation:
    """What the user has and may do."""

    share: tuple[str, ...] = ("weights",)
    """What may leave a client: words of `SHARES`."""
    public: bool = False
    """Is there a public set of samples that every party may have?"""
    different: bool = False
    """Do clients have different networks?"""
    alpha: float | None = None
    """How alike the clients' labels are (Dirichlet's α); None: not known."""
    active: float = 1.0
    """Share of the clients that are active in a round."""
    private: bool = False
    """Is a privacy guarantee for each sample wanted?"""
    cost: float | None = None
    """At most so many times FedAvg's processor time in a round; None: any."""

    def __post_init__(self) -> None:
        for word in self.share:
            if word not in SHARES:
                raise UsageError(f"share = {word}: must be one or more of {', '.join(SHARES)}")
        if self.alpha is not None and self.alpha <= 0:
            raise UsageError(f"alpha = {self.alpha}: must be > 0")
        if not 0 < self.active <= 1:
            raise UsageError(f"active = {self.active}: must be a share above 0, at most 1")

    @property
    def traits(self) -> list[str]:
        """Which of the situations that methods are made for this is."""
        unlike, few, different, alike = get_args(MadeFor)
        skewed = self.alpha is not None and self.alpha < SKEWED
        known = {unlike: skewed, few: self.active < SELDOM, different: self.different}
        return [name for name, true in known.items() if true] or [alike]


@dataclass(frozen=True)
class Advice:
    """A candidate."""

    method: str
    why: tuple[str, ...]
    leaves: Mapping[str, str]
    cost: str
    evidence: str
    command: str


def shipped() -> Path | None:
    """The folder of the leaderboard's records that the installed package came with; None where there is none."""
    try:
        files = metadata.files("fedstill") or []
    except metadata.PackageNotFoundError:
        return None
    found = [Path(str(file.locate())) for file in files if file.name == "leaderboard.jsonl"]
    return found[0].resolve().parent if found and found[0].exists() else None


def standings(results: Path | None) -> dict[str, Standing]:
    """The leaderboard's standings by method, from the records in this folder; none without records.

    None: the folder `results` where there is one, else the records that the package came with.
    """
    folder = results or (HERE if HERE.is_dir() else shipped())
    if folder is None or not folder.is_dir():
        return {}
    board = leagues(read_preset("leaderboard/board"), Archive(folder))
    return {standing.method: standing for league in board for standing in league.standings if standing.ranks}


def refusal(method: type[AnyMethod], situation: Situation, standing: Standing | None = None) -> str | None:
    """Why a method does not fit the situation; None where it does."""
    if not method.federated:
        return "has all data in one place"
    if method.needs_public and not situation.public:
        return "needs public data"
    if method().one_architecture and situation.different:  # it may depend on settings
        return "needs one network for all"
    allowed = NEUTRAL.union(*(SHARES[word] for word in situation.share))
    carried = method.leaves_client()
    if all(what in NEUTRAL for what in carried.values()):
        return "shares nothing"
    beyond = [what for what in carried.values() if what not in allowed]
    if beyond:
        return f"sends {beyond[0]}"
    if situation.private and not covered(method):
        return "sends what no guarantee for samples covers"
    if situation.cost is not None and standing and standing.time is not None and standing.time > situation.cost:
        return f"costs {standing.time:.1f} times FedAvg's time"
    return None


def covered(method: type[AnyMethod]) -> bool:
    """Does `--private epsilon=…` cover everything that leaves a client of this method?"""
    effects = coverage(method())["--private epsilon=8"]
    return "refused" not in effects and not any("not covered" in what for what in effects.values())


def advise(situation: Situation, results: Path | None = None, count: int = 3) -> list[Advice]:
    """The candidates for a situation, best first: by their place in their league, then by what they were made for."""
    known = standings(results)
    ranked = []
    for name, method in methods.usable():
        standing = known.get(name)
        if refusal(method, situation, standing) is None:
            measured = standing.below if standing else None
            suited = len(set(situation.traits).intersection(method.made_for))
            ranked.append(((measured is None, measured or 0.0, -suited, name), name, standing))
    if not ranked:
        reasons = {refusal(method, situation): name for name, method in methods.usable()}
        why = "; ".join(f"{name} {reason}" for reason, name in list(reasons.items())[:3])
        raise RunError(f"no method fits: {why}; allow more to be shared, or a public set")
    best = sorted(ranked, key=lambda r: r[0])[:count]
    found = [_advice(name, situation, standing) for _, name, standing in best]
    if known:
        return found
    return [replace(one, evidence=f"no records at {results or HERE}: name their folder (--results)") for one in found]


def _advice(name: str, situation: Situation, standing: Standing | None) -> Advice:
    method = methods[name]
    suited = [f"made for: {trait}" for trait in situation.traits if trait in method.made_for]
    needs = "uses the public set" if method.needs_public else "needs no public data"
    networks = "one network for all" if method().one_architecture else "networks may differ"
    words = ["fedstill", "run", name]
    words += ["--public", "0.1"] if method.needs_public else []
    words += ["--alpha", f"{situation.alpha:g}"] if situation.alpha is not None else []
    words += ["--active", f"{situation.active:g}"]
    words += ["--private", "epsilon=8,delta=1e-5"] if situation.private else []
    return Advice(
        method=name,
        why=((method.__doc__ or "").split("\n")[0], *suited, f"{needs}; {networks}"),
        leaves=method.leaves_client(),
        cost=_cost(standing),
        evidence=_evidence(standing),
        command=" ".join(words),
    )


def _cost(standing: Standing | None) -> str:
    if standing is None:
        return "not measured yet"
    parts = [("time", standing.time), ("bytes", standing.bytes)]
    measured = [f"{value:.2g} times FedAvg's {what}" for what, value in parts if value is not None]
    return ", ".join(measured) + " in a round" if measured else "not measured yet"


def _evidence(standing: Standing | None) -> str:
    if standing is None or standing.rank is None:
        return "no record on the leaderboard yet: try it beside fedavg"
    tasks = len(standing.ranks)
    over = f"{tasks} {'task' if tasks == 1 else 'tasks'} of the leaderboard"
    return f"mean rank {standing.rank:.1f} of {standing.among} ({standing.league}) by AMP over {over}"


def show(candidates: Sequence[Advice]) -> None:
    """Print the candidates."""
    console = Console(highlight=False, markup=False)
    for place, candidate in enumerate(candidates, 1):
        console.print(Text.assemble(f"{place}. ", (candidate.method, "bold")))
        for line in candidate.why:
            console.print(f"   {line}")
        console.print(f"   leaves a client: {', '.join(dict.fromkeys(candidate.leaves.values()))}")
        console.print(f"   cost: {candidate.cost}")
        console.print(f"   evidence: {candidate.evidence}")
        console.print(f"   {candidate.command}\n", soft_wrap=True)
