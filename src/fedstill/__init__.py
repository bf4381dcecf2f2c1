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
    "FederatedClassifier": "fedstill.estimator",
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
    "Gather": "fedstill.parts.gather",
    "Attack": "fedstill.parts.attacks",
    "Wrapper": "fedstill.core.turn",
    "Partition": "fedstill.data.partition",
    "Split": "fedstill.data.partition",
    "Metric": "fedstill.experiment.metrics",
    "Values": "fedstill.experiment.metrics",
    "Measure": "fedstill.experiment.measures",
    "Answers": "fedstill.experiment.measures",
}

__version__ = "0.2.0"


def names() -> dict[str, str]:
    """Everything `import fedstill` offers: each name, and the module it comes from."""
    return {**_HOMES, **dict.fromkeys(importlib.import_module("fedstill.methods").METHODS, "fedstill.methods")}


def __getattr__(name: str) -> Any:
    """What Python asks for a name of this module that is not loaded yet (PEP 562)."""
    home = _HOMES.get(name)
    if name == "methods":  # the package of that name, which is their registry too
        return importlib.import_module("fedstill.methods")
    if home is None and name[0].isupper():  # perhaps a method; nothing is loaded for a module
        home = names().get(name)
    if home is None:
        raise AttributeError(f"module 'fedstill' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)  # the name is the user's


def __dir__() -> list[str]:
    return sorted(["methods", *names()])
