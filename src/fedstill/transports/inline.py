"""Clients take their turns in this process, one after the other or on a few threads, each with a stream of its own."""

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch

from fedstill.core.errors import Abstains, FedstillError, RunError
from fedstill.core.method import Env, Method, Reply
from fedstill.core.shelf import Shelf
from fedstill.core.turn import Party, turn


class Inline:
    """Runs turns here, `threads` at a time, the client with most samples first."""

    idle = False

    def __init__(
        self, method: Method[Any, Any, Any, Any], party: Callable[[int], Party], states: Shelf, threads: int = 1
    ) -> None:
        self.method = method
        self.party = party
        self.states = states
        self.threads = threads
        self._streams: list[Any] = []

    def exchange(self, env: Env, downs: Mapping[int, Any]) -> list[Reply[Any]]:
        """Give every client its turn; replies come in the order of `downs`."""
        order = longest_first(env, downs)

        def take(client: int) -> tuple[Any, Reply[Any]]:
            return self._turn(env.at(env.round, client), downs[client])

        if self.threads == 1:
            results = {client: take(client) for client in order}
        else:

            def beside(client: int) -> tuple[Any, Reply[Any]]:
                with self._lane(env.device):
                    return take(client)

            with ThreadPoolExecutor(self.threads) as pool:
                results = dict(zip(order, pool.map(beside, order), strict=True))
        self.states = self.states.put(env.round, {k: results[k][0] for k in downs if results[k][0] is not None})
        return [results[k][1] for k in downs]

    def _turn(self, env: Env, down: Any) -> tuple[Any, Reply[Any]]:
        assert env.client is not None
        began = time.perf_counter()
        try:
            party, known = self.party(env.client), self.states.get(env.client)
            state, upload = turn(self.method, env, party, known, down, alone=self.threads == 1)
        except Abstains as why:
            return None, Reply(env.client, env.sizes[env.client], None, error=str(why))
        except FedstillError:
            raise
        except Exception as error:
            raise RunError(f"client {env.client} failed in round {env.round + 1}: {describe(error)}") from error
        spent = time.perf_counter() - began
        return state, Reply(env.client, env.sizes[env.client], upload, seconds=spent)

    @contextmanager
    def _lane(self, device: torch.device) -> Iterator[None]:
        """A stream of its own for a turn, where the device has several: turns on several threads then overlap there.

        It begins after all that was asked of the device before, and what is asked afterwards waits for it.
        """
        module = torch.get_device_module(device)
        if not hasattr(module, "Stream"):  # as that of mps, which has one only
            yield
            return
        try:
            own = self._streams.pop()
        except IndexError:
            own = module.Stream(device)
        main = module.current_stream(device)
        own.wait_stream(main)
        with module.stream(own):
            yield
        main.wait_stream(own)
        self._streams.append(own)  # with the memory that the device keeps for it

    def close(self) -> None:
        """Nothing to stop."""


def longest_first(env: Env, downs: Mapping[int, Any]) -> list[int]:
    """The order that keeps all workers busy longest: most samples first."""
    return sorted(downs, key=lambda k: (-env.sizes[k], k))


def describe(error: BaseException) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {error}".splitlines()[0]
