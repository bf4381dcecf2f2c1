"""The one app bundle that a hub runs: it names fedstill's own apps and brings no code."""

from functools import cache

from fedstill.flower.api.private import app_bundle_around
from fedstill.flower.api.requests import started_bundle

PROJECT = """[project]
name = "fedstill"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "fedstill"

[tool.flwr.app.components]
serverapp = "fedstill.flower.apps:server"
clientapp = "fedstill.flower.apps:client"

[tool.flwr.app.config]
run = ""
experiment = ""
wait = 60.0
signature = ""
"""


@cache
def app_bundle() -> bytes:
    """The bundle, as Flower packs it; the same bytes on every machine with this version."""
    return app_bundle_around(PROJECT)


def is_ours(request: bytes) -> bool:
    """Does a request to start a run bring this bundle, and no other?"""
    try:
        return started_bundle(request) == app_bundle()
    except Exception:  # a stranger's bytes: whatever they are, they are not ours
        return False
