"""Attacks: what malicious clients do to their own turn. They wrap it; the method cannot tell."""

from abc import ABC
from dataclasses import dataclass
from typing import Any

from fedstill.core.method import Env
from fedstill.core.registry import Registry
from fedstill.core.value import Value


@dataclass(frozen=True)
class Attack(Value, ABC):
    """Base of all attacks: changes nothing."""

    def on(self, place: int) -> "Attack":
        """The attack of the place-th malicious client, where they differ."""
        return self

    def data(self, env: Env, data: Any) -> Any:
        """The data it trains on."""
        return data

    def upload(self, env: Env, upload: Any) -> Any:
        """What it sends instead."""
        return upload


attacks: Registry[Attack] = Registry("attack", Attack)
