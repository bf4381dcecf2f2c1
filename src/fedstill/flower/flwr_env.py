"""How Flower is to behave under fedstill: no telemetry, no look for updates, no installing, its files in our folder."""

import os
import sys
from pathlib import Path

SETTINGS = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
}


def prepare(home: Path) -> None:
    """Set the environment, for this process and those it starts; before the first import of Flower."""
    from fedstill.core.errors import extra

    os.environ.update(SETTINGS)
    os.environ["FLWR_HOME"] = str(home)
    # Flower starts its helpers by name: those of this very installation are meant.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    with extra("flower", "Flower"):
        import flwr  # noqa: F401
