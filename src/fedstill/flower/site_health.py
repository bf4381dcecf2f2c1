"""A site's health for whoever watches the machine: `/health` and Prometheus' `/metrics`, on a port of its own."""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from fedstill.core.errors import UsageError
from fedstill.flower.exposition import Family


class SiteHealth:
    """What a site has done since it was started; it tells of no sample, no model and no run by name."""

    def __init__(self, connected: Callable[[], bool]) -> None:
        self.connected = connected
        self.since = time.time()
        self.asked: Counter[tuple[str, str]] = Counter()
        self.seconds = 0.0
        self.last = 0.0

    def count(self, kind: str, end: str, seconds: float) -> None:
        """One more question of this kind: answered, refused or given up, after so many seconds."""
        self.asked[kind, end] += 1
        self.seconds += seconds
        self.last = time.time()

    def state(self) -> tuple[int, dict[str, object]]:
        """An HTTP status and what to say: 503 while there is no line to the hub."""
        there = self.connected()
        status = "ok" if there else "no line to the hub"
        state: dict[str, object] = {"status": status, "seconds": round(time.time() - self.since)}
        return HTTPStatus.OK if there else HTTPStatus.SERVICE_UNAVAILABLE, state

    def prometheus(self) -> str:
        """The numbers in Prometheus' text format."""
        now = time.time()
        asked = [({"kind": kind, "end": end}, count) for (kind, end), count in sorted(self.asked.items())]
        up = round(now - self.since)
        quiet: list[tuple[dict[str, str], float]] = [({}, round(now - self.last))] if self.last else []
        families = (
            Family("fedstill_site_up_seconds", "Seconds since the site was started.", "gauge", [({}, up)]),
            Family("fedstill_site_connected", "Is there a line to the hub?", "gauge", [({}, self.connected())]),
            Family("fedstill_site_questions_total", "Questions of the hub by how they ended.", "counter", [*asked]),
            Family("fedstill_site_work_seconds_total", "Seconds of work for the hub.", "counter", [({}, self.seconds)]),
            Family("fedstill_site_quiet_seconds", "Seconds since the last question.", "gauge", [*quiet]),
        )  # fmt: skip
        return "".join(family.text() for family in families)


def served(health: SiteHealth, address: str) -> ThreadingHTTPServer:
    """Serve a site's health at `address` (host:port) from a thread of its own."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"--health {address}: must be host:port, such as 127.0.0.1:9081")

    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            """Say how the site is."""
            status, text, kind = 404, "no such thing here", "text/plain"
            if self.path == "/health":
                status, state = health.state()
                text, kind = json.dumps(state), "application/json"
            elif self.path == "/metrics":
                status, text, kind = 200, health.prometheus(), "text/plain; version=0.0.4"
            body = text.encode()
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing on the terminal."""

    try:
        server = ThreadingHTTPServer((host, int(port)), Handler)
    except OSError as error:
        raise UsageError(f"--health {address}: {error.strerror}") from None
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server
