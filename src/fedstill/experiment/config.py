"""An experiment: a method, data split over clients, and everything else that decides the result."""

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import FunctionType
from typing import Any, Literal

import fedstill.methods
import fedstill.parts.backdoor
import fedstill.parts.client_privacy
import fedstill.parts.compression
import fedstill.parts.robust_means
import fedstill.parts.secure_sums  # noqa: F401
from fedstill.core.errors import FedstillError, UsageError
from fedstill.core.method import Method, methods
from fedstill.core.turn import Wrapper, forged, misfit
from fedstill.core.value import Value, build, by_field, deciding, plain, setting
from fedstill.data.partition import Dirichlet, Partition
from fedstill.data.reading import SHORT, Reading
from fedstill.experiment.implied import are_arrays, with_reading, with_sites
from fedstill.experiment.metrics import Scorer
from fedstill.methods import FedAvg
from fedstill.parts.attacks import Attack
from fedstill.parts.class_weights import ClassWeights
from fedstill.parts.collusion import Collusion
from fedstill.parts.gather import gather_of
from fedstill.parts.pace import Pace
from fedstill.parts.privacy import PrivateSamples
from fedstill.parts.timetable import Timetable, draw_clients, most_turns


@dataclass(frozen=True)
class Experiment(Value):
    """What `fedstill run` runs. Everything here is written into the run; each setting says what it decides."""

    method: Method[Any, Any, Any, Any] = setting(FedAvg(), doc="the method, with its settings")
    data: Any = setting(
        "mnist-5k",
        option="data",
        doc="a data set's name, a file or folder, arrays, or a list with each client's own data",
    )
    reading: Reading | None = setting(
        None, doc="of a table: which column is the label, the site, the time, the text …; what else it holds"
    )
    samples: int | None = setting(
        None, ge=0, option=True, doc="use a stratified subset of this many training samples (0: all)"
    )
    balanced: bool = setting(False, doc="the subset has the same number of every class")
    clients: int = setting(20, ge=1, option=True, doc="number of clients (K)")
    active: float = setting(0.2, gt=0, option=True, doc="share (≤ 1) or number (> 1) of clients active in a round (C)")
    rounds: int = setting(20, ge=1, option=True, doc="rounds of communication (T)")
    pace: Pace | None = setting(None, option="paces", doc="sync: with a clock; async: not waiting for slow clients")
    seed: int = setting(1, ge=0, option=True, doc="seed of every random stream")
    split_seed: int | None = setting(
        None, ge=0, doc="seed of who gets which samples (default: seed); fixed, seeds differ in training alone"
    )
    partition: Partition = setting(Dirichlet(alpha=0.1), option="partitions", doc="how samples are split over clients")
    local_test: float = setting(
        0.2,
        ge=0,
        lt=1,
        option=True,
        doc="share of a client's samples kept as its local test (0: local tests come from the global test set)",
    )
    model: Any = setting(
        "auto",
        option="models",
        doc="a model's name, package.module:factory, or a torch module; auto: by the kind of the data",
    )
    models: tuple[str, ...] = setting(
        (), option="models", doc="a model for each client, or fewer, shared out in groups"
    )
    server_model: str | None = setting(
        None, doc="the server's model where clients differ (default: the first client's)"
    )
    public: Any = setting(
        None,
        option="data",
        doc="the public set: a share of every class, train (the training samples), or another data set",
    )
    attack: Attack | None = setting(None, option="attacks", doc="what malicious clients do")
    wrappers: tuple[Wrapper, ...] = setting(
        (), doc="what is wrapped around every client's turn, innermost first: compression, noise, a policy"
    )
    malicious: tuple[float, ...] = setting((), option=True, doc="the malicious clients, or their share")
    drop: float = setting(0.0, ge=0, le=1, option=True, doc="probability that an active client does not answer")
    workers: str = setting(
        "auto",
        decides="running",
        option=True,
        doc="worker processes (auto: one per core), inline, or threads; never changes the bits",
    )
    device: Literal["auto", "cpu", "cuda", "mps"] = setting("cpu", option=True, doc="where clients compute")
    patience: int | None = setting(
        None,
        ge=1,
        option=True,
        doc="stop when the AMP of the model that the method is judged by was not the best for so many evaluated rounds",
    )
    fingerprint: str | None = setting(
        None, decides="running", doc="of the data: a run with it refuses others (written by the run itself)"
    )
    evaluate_every: int = setting(1, ge=1, decides="reporting", doc="rounds between evaluations")
    checkpoint_every: int = setting(1, ge=1, decides="running", doc="rounds between checkpoints")
    per_class: bool = setting(
        False, decides="reporting", doc="also report accuracy per class, before and after local training"
    )
    metric: str = setting(  # not mere reporting: runs that differ in it have other numbers under the same names
        "accuracy", option="measures", doc="what AMP, FM and WLP are made of (see `fedstill ls measures`)"
    )
    metrics: tuple[str, ...] = setting(
        (), decides="reporting", doc="metrics of one's own to report besides amp, fm, wlp and accuracy"
    )
    transport: Literal["local", "flower", "flower-simulation"] = setting(
        "local", doc="local: on this machine; flower: on sites (fedstill deploy); flower-simulation: Flower's, on Ray"
    )
    deadline: float = setting(
        600.0, gt=0, decides="running", doc="seconds that sites have to answer in a round (deployed)"
    )
    quarantine: int = setting(
        3, ge=1, decides="running", doc="failures in a row after which a site is left out (deployed)"
    )
    largest_share: float = setting(
        0.5, gt=0, le=1, decides="running", doc="the share of all samples that one of three or more sites may claim"
    )
    largest_update: float = setting(
        20.0, ge=0, decides="running", doc="times the round's median that a site's update may measure; 0: any"
    )
    memory: int = setting(
        1024,
        ge=0,
        decides="running",
        doc="MiB of client states (and of slots) held in memory before they move to files",
    )

    tag: tuple[str, ...] = setting((), decides="nothing", option=True, doc="words to find the run by")
    note: str = setting("", decides="nothing", option=True, doc="a sentence on why the run was made")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.active > 1 and self.active != int(self.active):
            raise UsageError(f"active = {self.active}: must be a share ≤ 1 or a whole number of clients")
        if self.active > 1 and self.active > self.clients:
            raise UsageError(f"active = {self.active:g}: there are only {self.clients} clients")
        if self.method.needs_public and self.public is None:
            object.__setattr__(self, "public", 0.1)
        if self.method.one_architecture and len(set(self.models)) > 1:
            raise UsageError(
                f"models = {', '.join(self.models)}: {self.title} averages weights, so all clients need one model"
            )
        if not self.method.federated:
            self._in_one_place()
        if isinstance(self.attack, Collusion):
            self._known_to_each_other()
        if self.workers not in ("auto", "inline", "threads") and not (self.workers.isdigit() and int(self.workers)):
            raise UsageError(f"workers = {self.workers}: must be a number ≥ 1, auto, inline or threads")
        Scorer.of(self.metric, self.metrics)  # an unknown name is an error
        if bool(self.malicious) != (self.attack is not None):
            raise UsageError("attack and malicious go together: what is done, and by whom")
        if any(k >= self.clients for k in self.malicious_clients):
            raise UsageError(f"malicious = {max(self.malicious):g}: there are only {self.clients} clients, from 0")
        for wrapper in self.wrappers:
            object.__setattr__(self, "method", wrapper.fitted(self.method))
        if self.transport == "flower":
            object.__setattr__(self, "wrappers", tuple(wrapper.deployed() for wrapper in self.wrappers))
        gather = gather_of(self.method)
        if gather is not None and (wrong := gather.misfit(self.method)):
            raise UsageError(f"gather = {plain(gather)['name']}: {wrong}")
        weights = [w for w in self.wrappers if isinstance(w, ClassWeights)]
        if weights and len(self.wrappers) > 1:
            raise UsageError("wrappers: class-weights stands alone, without privacy or compression")
        if self.public == "train" and any(isinstance(w, PrivateSamples) for w in self.wrappers):
            raise UsageError(
                "public = train: no noise is counted on the public set, which would be the private samples"
            )
        if self.pace and (wrong := self.pace.misfit(self.method, self.wrappers, self.attack, self.clients)):
            raise UsageError(f"pace = {plain(self.pace)['name']}: {wrong}")
        if self.wrappers:
            run = (self.method, self.clients, self.active_count, self.rounds, self.most_turns)
            object.__setattr__(self, "wrappers", tuple(wrapper.settled(*run) for wrapper in self.wrappers))
        chain = self.wrappers if self.attack is None else forged(self.method, self.wrappers, self.attack)
        if odd := misfit(self.method, chain):
            what = "attack" if odd[0] is self.attack else "wrappers"
            raise UsageError(f"{what} = {plain(odd[0])['name']}: {odd[1]}")

    def _known_to_each_other(self) -> None:
        """Refuse attackers that know of each other where they cannot, or where updates are not readable to them."""
        name = plain(self.attack)["name"]
        if self.transport != "local":
            raise UsageError(f"attack = {name}: its attackers know each other's updates, so transport must be local")
        if self.wrappers:
            raise UsageError(f"attack = {name}: its attackers know each other's updates, so there can be no wrappers")

    def _in_one_place(self) -> None:
        """Refuse what needs clients."""
        if self.transport != "local":
            raise UsageError(
                f"transport = {self.transport}: {self.title} has all data in one place, it cannot be deployed"
            )
        if self.attack is not None:
            raise UsageError(f"attack = {plain(self.attack)['name']}: {self.title} has no clients that could attack")

    @property
    def title(self) -> str:
        """The method's registered name."""
        return str(plain(self.method)["name"])

    @property
    def folder_words(self) -> tuple[str, ...]:
        """Method, data and α, as a folder's name may have them: `fedavg`, `mnist-5k`, `a0.1`."""
        data = Path(self.data).stem if isinstance(self.data, str) else "own-data"
        alpha = plain(self.partition).get("alpha")
        words = (self.title, data, *([f"a{alpha:g}"] if alpha else []))
        return tuple(word.replace(":", ".") for word in words)

    @property
    def dealt_by(self) -> int:
        """The seed of who gets which samples."""
        return self.seed if self.split_seed is None else self.split_seed

    @property
    def active_count(self) -> int:
        """m = max(1, round(C·K)); 1 where all data are in one place."""
        if not self.method.federated:
            return 1
        return int(self.active) if self.active > 1 else max(1, round(self.active * self.clients))

    def active_in(self, round: int) -> list[int]:
        """The clients active in a round: m of K, uniformly, without replacement."""
        return draw_clients(self.seed, round, self.clients, self.active_count) if self.method.federated else [0]

    @property
    def most_turns(self) -> int:
        """The most turns that a client has in this run; the number of rounds, where speeds depend on its samples."""
        if self.pace and self.pace.speeds.by_samples:
            return self.rounds
        table = Timetable.of(self.pace, self.seed, [1] * self.clients, self.active_count)
        return most_turns(table.starting if table else self.active_in, self.rounds)

    @property
    def malicious_clients(self) -> tuple[int, ...]:
        """Who is malicious: the clients named, or for a share every second client (.5: 5 of 10, 7 of 15)."""
        if len(self.malicious) == 1 and 0 < self.malicious[0] < 1:
            wanted = int(self.malicious[0] * self.clients + 1e-9)
            order = [*range(1, self.clients, 2), *range(0, self.clients, 2)]
            return tuple(sorted(order[:wanted]))
        return tuple(int(k) for k in self.malicious)

    def plain(self) -> dict[str, Any]:
        """The experiment as numbers, text and lists; data or models given as objects are described, not kept."""
        entries = by_field(self)
        paths = [self.data] if isinstance(self.data, str) else self.data  # of each client's own data
        if not (isinstance(paths, list) and all(isinstance(path, str) for path in paths)):
            entries["data"] = _described(self.data)
        if not isinstance(self.public, str | float | None):
            entries["public"] = _described(self.public)
        if not isinstance(self.model, str):
            entries["model"] = _described(self.model)
        return {name: plain(value) for name, value in entries.items() if value is not None}

    @property
    def objects(self) -> tuple[str, ...]:
        """The settings that were given as objects, not names: a run's file cannot bring them back."""
        return given_as_objects(self.plain())


def _described(thing: Any) -> str:
    """What a run's file says of an object."""
    return f"<{thing.__name__ if isinstance(thing, type | FunctionType) else type(thing).__name__}>"


def given_as_objects(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The plain settings that only describe an object, since no name was given."""
    return tuple(name for name, value in settings.items() if isinstance(value, str) and value.startswith("<"))


def identity(settings: Mapping[str, Any], *but: str, reporting: bool = True) -> dict[str, Any]:
    """The part of plain settings that decides what a run is: its bits, and unless told not to what is reported.

    `but` names settings that are to be left out besides: runs that differ in `seed` alone are seeds of one experiment.
    """
    left_out = {*but, *deciding(Experiment, "running", "nothing", *(() if reporting else ("reporting",)))}
    return {name: value for name, value in settings.items() if name not in left_out}


def experiment(settings: Mapping[str, Any]) -> Experiment:
    """An experiment from plain settings; `alpha` is short for the partition's, `label` and others for the reading's."""
    known = with_sites(with_reading(dict(settings)), Experiment.data)
    if "alpha" in known:
        alpha = known.pop("alpha")
        shape = known.get("partition", {"name": "dirichlet"})
        shape = {"name": shape} if isinstance(shape, str) else plain(shape)
        known["partition"] = {**shape, "alpha": alpha}
    if isinstance(known.get("public"), str):
        known["public"] = _number(known["public"])
    if isinstance(known.get("malicious"), int | float | str):
        known["malicious"] = str(known["malicious"]).split(",")
    if "workers" in known:
        known["workers"] = str(known["workers"])
    if isinstance(known.get("data"), Sequence) and not isinstance(known["data"], str) and not are_arrays(known["data"]):
        known["clients"] = len(known["data"])
    _refuse_gather(known.get("method"))
    return build(Experiment, known)


def _refuse_gather(method: Any) -> None:
    """Say why a method takes no gather, where one is asked for: it is no misspelt setting."""
    if not isinstance(method, Mapping) or "gather" not in method or method.get("name") not in methods:
        return
    if all(f.name != "gather" for f in fields(methods[method["name"]])):
        asked = method["gather"]
        name = asked.get("name", asked) if isinstance(asked, Mapping) else asked
        raise UsageError(
            f"gather = {name}: {method['name']} has no gather; its server neither averages clients' weights nor weighs "
            "their public logits"
        )


def options() -> dict[str, type]:
    """Every name that `experiment` takes and the command line offers, with the class whose field it is."""
    own = {f.name: Experiment for f in fields(Experiment) if f.metadata.get("option")}
    return {**own, "alpha": Dirichlet, **dict.fromkeys(SHORT, Reading)}


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def plan_without_data(settings: Mapping[str, Any]) -> Experiment | None:
    """The experiment in a run's plain settings with other data in place of its own, which need not be here.

    None where this version cannot read it, as one of a method that is not registered here.
    """
    try:
        return experiment({**settings, "data": "mnist-5k", "public": None})
    except (FedstillError, ValueError, KeyError, TypeError):
        return None


def read(path: Path) -> dict[str, Any]:
    """The settings in a TOML (or a run's JSON) file."""
    try:
        text = path.read_text()
        return json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except (ValueError, OSError) as error:
        raise UsageError(f"{path}: {error}") from None
