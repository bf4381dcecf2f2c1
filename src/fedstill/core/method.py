"""The contract: what a method is, and what it sees of the world.

A method is a value (a frozen dataclass of hyper-parameters) with five pure functions that read like the algorithm box
of its paper. It knows nothing of transports, processes, files or networks: the same lines run in the simulator and on
a site's own machine. Only the upload record leaves a client.
"""

import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, Generic, Literal, TypeVar

import numpy as np
import torch

from fedstill.core import rng
from fedstill.core.classifier import Classifier
from fedstill.core.errors import UsageError
from fedstill.core.kind import Kind
from fedstill.core.prototypes import Prototypes
from fedstill.core.record import State, declared
from fedstill.core.registry import Registry
from fedstill.core.shelf import Shelf, Storage
from fedstill.core.value import Value

S = TypeVar("S")
C = TypeVar("C")
D = TypeVar("D")
U = TypeVar("U")
U_co = TypeVar("U_co", covariant=True)


@cache
def _annotations(function: Callable[..., Any]) -> Mapping[str, Any]:
    """The types of a function's arguments and of what it returns; looking them up is slow."""
    return typing.get_type_hints(function)


@dataclass(frozen=True)
class Env:
    """What a method may know: the set-up, where and when it runs, and random streams keyed to that."""

    seed: int
    """The run's seed, which every random stream is keyed by."""
    sizes: tuple[int, ...]
    """The number of training samples of every client, told once at enrolment."""
    classes: int
    """How many classes there are."""
    kind: Kind
    """What one sample is: shape, normalisation, noise …"""
    build: Callable[[int | None, int | None], Classifier]
    """`build(k, seed)`: a module of client k's architecture (the server's for None), from the seed if given, on
    the CPU."""
    public: Any = None
    """The public data set, on every party's machine, for the methods that need one."""
    public_classes: int | None = None
    """How many classes the public set has where they are not the data's own; None where they are."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    """Where models are trained."""
    storage: Storage = field(default_factory=Storage)
    """Where shelves keep what does not fit into memory."""
    guard: Any = None
    """Who draws batches and makes learners where samples are protected (`parts.learner.Guard`); None: nobody."""
    secret: str = ""
    """What this party alone knows, for noise that nobody else can take off again; empty in a simulation."""
    round: int = 0
    """The round, from 0."""
    client: int | None = None
    """Whose turn it is; None: the server's."""

    def at(self, round: int, client: int | None = None) -> "Env":
        """The same set-up, seen in a round (from 0) by one client, or by the server where `client` is None."""
        here = object.__new__(Env)  # `replace` would list all fields, and this is asked several times in every turn
        here.__dict__.update(self.__dict__, round=round, client=client)
        return here

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input of a model."""
        return self.kind.shape

    @property
    def clients(self) -> int:
        """How many clients there are, active or not."""
        return len(self.sizes)

    def stream(self, purpose: str) -> torch.Generator:
        """The torch stream of this purpose, round and client."""
        return rng.torch_stream(self.seed, purpose, self.round, self.client)

    def numpy_stream(self, purpose: str) -> np.random.Generator:
        """The numpy stream of this purpose, round and client."""
        return rng.numpy_stream(self.seed, purpose, self.round, self.client)

    def key(self, purpose: str) -> int:
        """An integer seed for this purpose and client, the same in every round."""
        return rng.key(self.seed, purpose, self.client)

    def module(self, weights: State | None = None, of: int | None = None) -> Classifier:
        """A module on the run's device with the architecture of client `of` (None: the server's).

        It holds `weights`; without them its numbers do not matter.
        """
        if weights is not None and isinstance(self.build, Prototypes):
            made = self.build.holding(of, weights)
        else:
            made = self.build(of, None)
            if weights is not None:
                made.load_state_dict(weights)
        return made if self.device.type == "cpu" else made.to(self.device)

    def initial(self, of: int | None = None) -> State:
        """The weights that the model of client `of` (None: the server's) starts from, by the seed alone."""
        return dict(self.build(of, rng.key(self.seed, "model", of)).state_dict())

    def form(self, of: int | None = None) -> State:
        """Weights of the right names, shapes and types for the model of client `of` (None: the server's).

        Their numbers do not matter. They are shared by all who ask, and must not be written to.
        """
        return dict(self.build.form(of) if isinstance(self.build, Prototypes) else self.build(of, None).state_dict())

    def shelf(self, name: str) -> Shelf:
        """An empty shelf for what a method keeps for each client."""
        return Shelf(name, self.storage)


@dataclass(frozen=True)
class Late:
    """Of a reply that comes after the server has stepped on: how often, whence the client started, what it counts."""

    steps: int
    start: State
    weight: float


@dataclass(frozen=True)
class Reply(Generic[U_co]):
    """A client's answer to a download: its upload, or why there is none."""

    client: int
    """The number of the client that answers."""
    samples: float
    """How much it counts: its number of samples, or the mean of all clients' where they are to count alike."""
    upload: U_co
    """None where there is an error; such a reply never reaches a method."""
    error: str | None = None
    """Why there is no upload."""
    seconds: float = 0.0
    """How long the client's turn took."""
    down: Any = None
    """The download that it answers, for wrappers."""
    form: Any = None
    """An upload of the method's form, for wrappers, which turn theirs into one."""
    late: Late | None = None
    """In asynchronous rounds: how old the model is that the client started from; None: it is the server's own."""
    bytes: Mapping[str, int] | None = None
    """Of what came from the client, by field, where that was another record (masked numbers) than `upload`."""


MadeFor = Literal[
    "labels differ much from client to client",
    "few clients are active in a round",
    "clients may have different networks",
    "clients are much alike",
]
"""Situations that methods are made for."""


@dataclass(frozen=True)
class Method(Value, ABC, Generic[S, C, D, U]):
    """A federated method. `S`, `C`: what server and client keep; `D`, `U`: what travels down and up; all records."""

    paper: ClassVar[str] = ""
    """The reference: authors, title, venue, year."""
    needs_public: ClassVar[bool] = False
    """True for methods that need a public set."""
    same_classes: ClassVar[bool] = False
    """True for methods whose public set must be labelled with the data's own classes."""
    server_sums: ClassVar[Literal["samples", "plain"] | None] = None
    """For methods whose server needs no more than the sum of what clients send: by samples, or each counting alike."""
    one_architecture: ClassVar[bool] = True
    """False for methods whose clients may have different networks."""
    needs_features: ClassVar[bool] = False
    """True for methods that ask a model for more than its logits: `features()` and `head`."""
    one_download: ClassVar[bool] = False
    """True where `download` gives every client the same, which is then made and written once a round (`env.client`
    is None). It belongs to the `download` beside it: a class that overrides `download` says it again."""
    late_replies: ClassVar[bool] = False
    """True where `server` can use replies that started from an older model (`Reply.late`), as asynchronous rounds
    have them. It belongs to the `server` beside it: a class that overrides `server` says it again."""
    federated: ClassVar[bool] = True
    """False for the yardstick that has all clients' training samples in one place."""
    made_for: ClassVar[tuple[MadeFor, ...]] = ()
    """What its paper made it for: `fedstill advise` puts it first there, where no record says what is best."""
    judged_by: ClassVar[str] = ""
    """The reported model that the method is judged by: in tables, on the leaderboard, and when it is used. Empty where
    that is the first model of `models` (`active`, `global` …), or the clients' own where there is no other."""
    one_round: ClassVar[bool] = False
    """True for methods that are meant for a single round in which all clients take part."""

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        if "download" in cls.__dict__ and "one_download" not in cls.__dict__:
            cls.one_download = False
        if "server" in cls.__dict__ and "late_replies" not in cls.__dict__:
            cls.late_replies = False

    @abstractmethod
    def init_server(self, env: Env) -> S:
        """What the server knows before the first round."""

    @abstractmethod
    def init_client(self, env: Env) -> C:
        """What a client knows before its first turn."""

    @abstractmethod
    def download(self, env: Env, server: S) -> D:
        """What the server sends to `env.client` in this round."""

    @abstractmethod
    def client(self, env: Env, state: C, down: D, data: Any) -> tuple[C, U]:
        """A client's turn.

        Args:
            env: the set-up, seen by this client in this round.
            state: what the client kept after its last turn; before the first, what `init_client` gave.
            down: what `download` gave for it in this round.
            data: its training samples.

        Returns:
            What it keeps, and the upload: all that leaves it.
        """

    @abstractmethod
    def server(self, env: Env, server: S, replies: Sequence[Reply[U]]) -> S:
        """The server's turn.

        Args:
            env: the set-up, seen by the server in this round.
            server: the server's state after the last round.
            replies: at least one, each with an upload of the form of `template`.

        Returns:
            The server's next state.
        """

    @abstractmethod
    def template(self, env: Env) -> U:
        """An upload of `env.client` of the right form (its numbers do not matter): replies are measured against it."""

    def objection(self, env: Env, upload: U) -> str | None:
        """What is wrong with an upload beyond its form, if anything."""
        return None

    def models(self, env: Env, server: S) -> Mapping[str, State]:
        """The global models to report, by name."""
        return {}

    def architectures(self, env: Env, server: S) -> Mapping[str, int]:
        """The client whose architecture a reported model has, where it is not the server's."""
        return {}

    def own(self, env: Env, state: C) -> State | None:
        """The client's own model, for methods that have one: reported as `personal`."""
        return None

    def imagined(self, env: Env, state: C, count: int) -> torch.Tensor | None:
        """`count` samples from the client's own generator, as models see them, for the report; None: it has none."""
        return None

    def facts(self, env: Env, server: S) -> Mapping[str, Any]:
        """Anything else worth a line in the round's metrics, as plain numbers, text and lists."""
        return {}

    def uploads(self) -> type:
        """The record that leaves a client with these settings."""
        return self.upload_type()

    def gathered(self) -> type:
        """The record that the method's gather works on: what leaves a client, unless the server unpacks it first."""
        return self.uploads()

    def downloads(self) -> type:
        """The record that goes down to a client with these settings."""
        return self.download_type()

    @classmethod
    def upload_type(cls) -> type:
        """The record that leaves a client, from the annotation of `client`."""
        returned = typing.get_args(_annotations(cls.client).get("return"))
        if len(returned) != 2 or not isinstance(returned[1], type):
            raise UsageError(
                f"{cls.__name__}.client: annotate what it returns, `-> tuple[State, Upload]`, "
                "so that everybody can see what leaves a client"
            )
        return returned[1]

    @classmethod
    def download_type(cls) -> type:
        """The record that goes down to a client, from the annotation of `client`."""
        down = _annotations(cls.client).get("down")
        if not isinstance(down, type):
            raise UsageError(f"{cls.__name__}.client: annotate `down` with the record that goes down to a client")
        return down

    @classmethod
    def leaves_client(cls) -> dict[str, str]:
        """Field by field, what leaves a client: printed, never written by hand."""
        return declared(cls.upload_type())


methods: Registry[Any] = Registry("method", Method)
