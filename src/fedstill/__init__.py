"""fedstill: federated knowledge distillation that works outside the paper.

    import fedstill as fs
    result = fs.run(fs.FedAvg(lr=0.05), data="mnist-5k", clients=20, active=0.2, alpha=0.1, rounds=20, seed=1)

Names are loaded when they are first used, so that `fedstill --help` answers at once.
"""

import importlib
from typing import Any

from fedstill.core.registry import Registry

Registry.announce("transport", "flower-simulation", "fedstill.flower.simulation")
Registry.announce("view of a result", "curves", "fedstill.report.figures.plots")
Registry.announce("view of a result", "notebook", "fedstill.report.notebook")
Registry.announce("view of a result", "live", "fedstill.report.terminal")
Registry.announce("view of a result", "model", "fedstill.experiment.ready")

_HOMES = {
    "run": "fedstill.experiment.run",
    "resume": "fedstill.experiment.run",
    "load_model": "fedstill.experiment.ready",
    "Watcher": "fedstill.experiment.watcher",
    "StopRun": "fedstill.experiment.watcher",
    "Experiment": "fedstill.experiment.config",
    "Result": "fedstill.experiment.result",
    "Samples": "fedstill.data",
    "Dataset": "fedstill.data",
    "load": "fedstill.data",
    "Env": "fedstill.core.method",
    "Method": "fedstill.core.method",
    "Reply": "fedstill.core.method",
    "record": "fedstill.core.record",
    "carries": "fedstill.core.record",
    "Carries": "fedstill.core.record",
    "setting": "fedstill.core.value",
    "FedstillError": "fedstill.core.errors",
    "Remember": "fedstill.parts.gather",
    "Everyone": "fedstill.parts.gather",
    "Identify": "fedstill.parts.trust",
}

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if name == "methods":  # the package of that name, which is their registry too
        return importlib.import_module("fedstill.methods")
    if home is None and not name[0].isupper():  # a module, not a method: nothing to load for it
        raise AttributeError(f"module 'fedstill' has no attribute {name!r}")
    if home is None:
        found = importlib.import_module("fedstill.methods")
        if name not in found.__all__:
            raise AttributeError(f"module 'fedstill' has no attribute {name!r}")
        return getattr(found, name)
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted(["methods", *_HOMES, *importlib.import_module("fedstill.methods").__all__])
