"""Flower's SuperLink, served in this process, and the processes of its runs.

Flower would start runs through a helper that any process of this machine could impersonate, and would show a run's
token in the list of processes. Here the hub itself takes the runs that wait, with a secret that is never written
anywhere, and hands each token to the run's process through its standard input.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from fedstill.flower.api import private

LOOK = 0.2
"""Seconds between two looks for a run that waits."""
TAKING = "/flwr.proto.Runtime/AcquireTask"


def serve_superlink(words: list[str], around: Callable[[Any], Any], secret: bytes, **options: Any) -> None:
    """Run Flower's SuperLink with these command-line words until a signal ends it, `around` its HTTP application.

    Whoever takes a run's task must know `secret`; `options` are uvicorn's.
    """
    import uvicorn

    app, settings = private.superlink_app(words, secret)
    uvicorn.run(
        app=around(app),
        host=settings.host,
        port=settings.port,
        access_log=False,
        ssl_keyfile=settings.ssl_keyfile,
        ssl_certfile=settings.ssl_certfile,
        workers=1,
        **options,
    )


def take_tasks(address: str, ca: Path | None, secret: bytes, stopped: threading.Event) -> None:
    """Start a process for every run that waits at the hub at `address`, until `stopped`."""
    signed = private.SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods={TAKING})
    client = private.RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=ca is None,
        root_certificates=None if ca is None else ca.read_bytes(),
        interceptors=[private.RuntimeVersionHttpInterceptor(component_name="SuperExec"), signed],
    )
    running: list[subprocess.Popen[bytes]] = []
    while not stopped.wait(LOOK):
        running = [process for process in running if process.poll() is None]
        try:
            answer = client.AcquireTask(
                private.runtime_pb2.AcquireTaskRequest(supported_task_types=[private.TaskType.SERVER_APP])
            )
        except httpx.HTTPError:
            continue  # the hub is starting or stopping
        if answer.HasField("task") and answer.token:
            running.append(_started(address, ca, answer.token))


def _started(address: str, ca: Path | None, token: str) -> "subprocess.Popen[bytes]":
    """A run's process; it ends with this one."""
    line = ["--insecure"] if ca is None else ["--root-certificates", str(ca)]
    words = ["--runtime-api-address", address, *line, "--parent-pid", str(os.getpid())]
    process = subprocess.Popen(
        [sys.executable, "-c", f"from {__name__} import run_task; run_task()", *words], stdin=subprocess.PIPE
    )
    assert process.stdin is not None
    process.stdin.write(token.encode())
    process.stdin.close()
    return process


def run_task() -> None:
    """A run's own process: Flower's `flwr-serverapp` with the token from standard input, where nobody else sees it."""
    private.run_server_app(sys.stdin.read().strip())
