"""Clients take their turns in this process, one after the other or on a few threads."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fedstill.core.errors import Abstains, FedstillError, RunError
from fedstill.core.method import Env, Method, Reply
from fedstill.core.shelf import Shelf
from fedstill.core.turn import Party, turn


class Inline:
    """Runs turns here, `threads` at a time, the client with most samples first."""

    def __init__(
        self, method: Method[Any, Any, Any, Any], party: Callable[[int], Party], states: Shelf, threads: int = 1
    ) -> None:
        self.method = method
        self.party = party
        self.states = states
        self.threads = threads

    def exchange(self, env: Env, downs: Mapping[int, Any]) -> list[Reply[Any]]:
        """Give every client its turn; replies come in the order of `downs`."""
        order = longest_first(env, downs)

        def take(client: int) -> tuple[Any, Reply[Any]]:
            return self._turn(env.at(env.round, client), downs[client])

        if self.threads == 1:
            results = {client: take(client) for client in order}
        else:
            with ThreadPoolExecutor(self.threads) as pool:
                results = dict(zip(order, pool.map(take, order), strict=True))
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

    def close(self) -> None:
        """Nothing to stop."""


def longest_first(env: Env, downs: Mapping[int, Any]) -> list[int]:
    """The order that keeps all workers busy longest: most samples first."""
    return sorted(downs, key=lambda k: (-env.sizes[k], k))


def describe(error: BaseException) -> str:
    """An exception in one line."""
    return f"{type(error).__name__}: {error}".splitlines()[0]
