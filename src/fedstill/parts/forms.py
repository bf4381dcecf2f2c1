"""One name for a method that comes in two forms: each form is a method of its own, and a setting chooses."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from fedstill.core.method import Env, Method, Reply
from fedstill.core.record import State


@dataclass(frozen=True)
class InForms(Method[Any, Any, Any, Any]):
    """A method that leaves all work to the form its settings ask for."""

    def __post_init__(self) -> None:
        super().__post_init__()
        form = self.form  # what is a fact of every FedAvg may differ between the forms
        object.__setattr__(self, "one_architecture", form.one_architecture)
        object.__setattr__(self, "one_download", form.one_download)

    @property
    @abstractmethod
    def form(self) -> Method[Any, Any, Any, Any]:
        """The method that does the work with these settings."""

    def init_server(self, env: Env) -> Any:
        """The form's."""
        return self.form.init_server(env)

    def init_client(self, env: Env) -> Any:
        """The form's."""
        return self.form.init_client(env)

    def download(self, env: Env, server: Any) -> Any:
        """The form's."""
        return self.form.download(env, server)

    def client(self, env: Env, state: Any, down: Any, data: Any) -> tuple[Any, Any]:
        """The form's."""
        return self.form.client(env, state, down, data)

    def server(self, env: Env, server: Any, replies: Sequence[Reply[Any]]) -> Any:
        """The form's."""
        return self.form.server(env, server, replies)

    def template(self, env: Env) -> Any:
        """The form's."""
        return self.form.template(env)

    def objection(self, env: Env, upload: Any) -> str | None:
        """The form's."""
        return self.form.objection(env, upload)

    def models(self, env: Env, server: Any) -> Mapping[str, State]:
        """The form's."""
        return self.form.models(env, server)

    def architectures(self, env: Env, server: Any) -> Mapping[str, int]:
        """The form's."""
        return self.form.architectures(env, server)

    def own(self, env: Env, state: Any) -> State | None:
        """The form's."""
        return self.form.own(env, state)

    def imagined(self, env: Env, state: Any, count: int) -> Tensor | None:
        """The form's."""
        return self.form.imagined(env, state, count)

    def facts(self, env: Env, server: Any) -> Mapping[str, Any]:
        """The form's."""
        return self.form.facts(env, server)

    def uploads(self) -> type:
        """The form's."""
        return self.form.uploads()

    def downloads(self) -> type:
        """The form's."""
        return self.form.downloads()

    @classmethod
    def upload_type(cls) -> type:
        """That of the default form."""
        return cls().uploads()

    @classmethod
    def download_type(cls) -> type:
        """That of the default form."""
        return cls().downloads()
