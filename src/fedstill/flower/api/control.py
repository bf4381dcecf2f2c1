"""The Control API: starting, stopping and reading runs, registering keys."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from fedstill.flower.api import private


@dataclass(frozen=True)
class KnownRun:
    """A run as the hub knows it."""

    id: int
    name: str
    status: str
    result: str
    details: str
    order: Mapping[str, Any]
    """What it was started with."""

    @property
    def over(self) -> bool:
        """Has it ended, well or not?"""
        return self.status == "finished"


class Control:
    """The Control API: starting, stopping and reading runs, registering keys."""

    def __init__(self, address: str, insecure: bool, root: bytes | None, headers: Mapping[str, str]) -> None:
        self.client = private.ControlHttpClient.from_server_address(
            address,
            insecure,
            root,
            interceptors=[private.RuntimeVersionHttpInterceptor(component_name="flwr CLI"), _Headers(headers)],
        )

    def close(self) -> None:
        """Hang up."""
        self.client.close()

    def register(self, name: str, public: bytes) -> None:
        """Let the node with this key in, under this name."""
        self.client.RegisterNode(private.control_pb2.RegisterNodeRequest(public_key=public, name=name))

    def start(self, fab: bytes, config: Mapping[str, Any]) -> int | None:
        """Start a run of this bundle; its number."""
        request = private.control_pb2.StartRunRequest(
            fab=private.fab_pb2.Fab(hash_str=hashlib.sha256(fab).hexdigest(), content=fab),
            override_config=private.serde.user_config_to_proto(dict(config)),
        )
        answer = self.client.StartRun(request)
        return int(answer.run_id) if answer.HasField("run_id") else None

    def runs(self, run: int | None = None) -> list[KnownRun]:
        """The hub's runs, the newest first, or the one of this number."""
        request = (
            private.control_pb2.ListRunsRequest(limit=100)
            if run is None
            else private.control_pb2.ListRunsRequest(run_id=run)
        )
        runs = self.client.ListRuns(request).run_dict.values()
        return [_known(r) for r in sorted(runs, key=lambda r: r.pending_at, reverse=True)]

    def stop(self, run: int) -> None:
        """End a run."""
        self.client.StopRun(private.control_pb2.StopRunRequest(run_id=run))

    def log(self, run: int) -> Iterator[str]:
        """A run's log from its beginning, piece by piece, as it grows."""
        for piece in self.client.StreamLogs(private.control_pb2.StreamLogsRequest(run_id=run, after_timestamp=0.0)):
            yield piece.log_output


def _known(run: Any) -> KnownRun:
    order = private.serde.user_config_from_proto(run.override_config)
    state = run.status
    return KnownRun(run.run_id, str(order.get("run", "")), state.status, state.sub_status, state.details, order)


class _Headers:
    """Adds headers to every request."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self.headers = headers

    def intercept(self, context: Any, call_next: Any) -> httpx.Response:
        """Add them."""
        context.request.headers.update(self.headers)
        response: httpx.Response = call_next(context)
        return response
