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
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.runtime import RuntimeHttpClient

LOOK = 0.2
"""Seconds between two looks for a run that waits."""
TAKING = "/flwr.proto.Runtime/AcquireTask"


def serve_superlink(words: list[str], around: Callable[[Any], Any], secret: bytes, **options: Any) -> None:
    """Run Flower's SuperLink with these command-line words until a signal ends it, `around` its HTTP application.

    Whoever takes a run's task must know `secret`; `options` are uvicorn's.
    """
    import uvicorn
    from flwr.supercore.http_logging import get_uvicorn_log_config
    from flwr.supercore.logger import console_handler
    from flwr.superlink.cli import flower_superlink as superlink
    from flwr.superlink.main import create_app

    link = sys.modules[superlink.__module__]
    sys.argv = ["flower-superlink", *words, "--isolation", "process"]
    config = replace(link._parse_superlink_lifespan_config(), superexec_auth_secret=secret)
    uvicorn.run(
        app=around(create_app(config, link.SuperLinkLifespan)),
        host=config.host,
        port=config.port,
        access_log=False,
        log_config=get_uvicorn_log_config(console_handler.level),
        ssl_keyfile=config.ssl_keyfile,
        ssl_certfile=config.ssl_certfile,
        workers=1,
        **options,
    )


def take_tasks(address: str, ca: Path | None, secret: bytes, stopped: threading.Event) -> None:
    """Start a process for every run that waits at the hub at `address`, until `stopped`."""
    signed = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods={TAKING})
    client = RuntimeHttpClient.from_server_address(
        server_address=address,
        insecure=ca is None,
        root_certificates=None if ca is None else ca.read_bytes(),
        interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec"), signed],
    )
    running: list[subprocess.Popen[bytes]] = []
    while not stopped.wait(LOOK):
        running = [process for process in running if process.poll() is None]
        try:
            found = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
        except httpx.HTTPError:
            continue  # the hub is starting or stopping
        if found.HasField("task") and found.token:
            running.append(_started(address, ca, found.token))


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
    from flwr.superlink.cli.flwr_serverapp import flwr_serverapp

    sys.argv += ["--token", sys.stdin.read().strip()]
    flwr_serverapp()
