"""The exact command that makes a run again."""

import shlex
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from fedstill.core.errors import FedstillError
from fedstill.core.value import deciding
from fedstill.experiment.config import Experiment, experiment, given_as_objects
from fedstill.experiment.toml import literal


def command(settings: Mapping[str, Any]) -> str:
    """`fedstill run …` with every setting that is not the default.

    >>> command(experiment({"method": {"name": "fedavg", "lr": 0.05}, "rounds": 5}).plain())
    'fedstill run fedavg --rounds 5 --set lr=0.05'
    """
    given = given_as_objects(settings)
    if given:
        return f"# from Python: fedstill.run(...), since {' and '.join(given)} came as an object, not a name"
    name = settings["method"]["name"]
    try:
        usual = experiment({"method": name}).plain()
    except FedstillError:
        return "fedstill run experiment.json"  # a method of one's own, not registered here
    words = ["fedstill", "run", name]
    rest: dict[str, Any] = {}
    options = {f.name for f in fields(Experiment) if f.metadata["option"]}
    left_out = {"method", "workers", "fingerprint", *deciding(Experiment, "nothing")}  # workers never change the bits
    for key, value in settings.items():
        if key in left_out or value == usual.get(key):
            continue
        if key in options and not isinstance(value, Mapping) and not (key == "data" and isinstance(value, list)):
            words += [
                f"--{key.replace('_', '-')}",
                ",".join(map(str, value)) if isinstance(value, list) else str(value),
            ]
        else:
            rest[key] = value
    reserved = {f.name for f in fields(Experiment)}
    for key, value in settings["method"].items():
        if value != usual["method"].get(key):
            rest[f"method.{key}" if key in reserved else key] = value
    for key, value in rest.items():
        # --set reads tables, lists and truth as TOML, the rest as text
        words += ["--set", f"{key}={literal(value) if isinstance(value, Mapping | list | bool) else value}"]
    return shlex.join(words)
