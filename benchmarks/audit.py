"""What an audit learns of methods with and without privacy: membership by what left their clients.

python benchmarks/audit.py                       # all methods; some two core-minutes
python benchmarks/audit.py --record              # the same, into the record that docs/privacy.md is made from
python benchmarks/audit.py fedavg fedproto       # these methods alone
python benchmarks/audit.py --splits 10           # ε = 1 on ten small splits, beside a model that has seen nobody
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from measured import keep, machine

from fedstill.core.errors import UsageError
from fedstill.experiment.audit import audit, opened, own_others, scores
from fedstill.experiment.config import experiment
from fedstill.experiment.inference import auc, plainly
from fedstill.experiment.run import start
from fedstill.experiment.rundir import RunDir
from fedstill.experiment.shorthand import wrapped

METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedprox": {},
    "scaffold": {},
    "fedkf": {"noise": 16, "channels": 8},
    "fedrad": {"relational": False},
    "dafkd": {"local_steps": None, "noise": 16, "distill_samples": 64, "optimizer": "sgd"},
    "fedmd": {"optimizer": "sgd"},
    "fedtkd": {"optimizer": "sgd"},
    "fedproto": {},
}
EACH = 120
"""Samples of a client, half of which it trains on: few enough to be learnt by heart."""
LEARNT_BY_HEART = {"epochs": 25, "lr": 0.1, "batch": 32}
FEW = {"data": "digits", "active": 1.0, "rounds": 3, "alpha": 1.0, "local_test": 0.5, "workers": "inline"}


def audited(name: str, private: str | None, clients: int, seed: int) -> list[dict[str, Any]]:
    """The membership rows of an audit of one small run."""
    method = {"name": name, **LEARNT_BY_HEART, **METHODS[name]}
    size = {"clients": clients, "samples": EACH * clients}
    plan = experiment({"method": method, **FEW, **size, "seed": seed, "wrappers": wrapped(private)})
    with tempfile.TemporaryDirectory() as folder:
        start(plan, out=Path(folder), name="run")
        rows: list[dict[str, Any]] = audit(Path(folder) / "run", 0)["membership"]
        return rows


def table(names: Sequence[str], clients: int = 8, seed: int = 1) -> None:
    """A row for every method and target: AUC and TPR at 1 % FPR, without privacy and at ε = 1."""
    print(f"digits, {clients} clients of some {EACH} samples, half of them members; seed {seed}; ε = 1 at δ = 10⁻³\n")
    print("| method | attacked | AUC | AUC, ε = 1 | TPR | TPR, ε = 1 |\n|---|---|---|---|---|---|")
    about, known = machine(), []
    for name in names:
        free = {row["target"]: row for row in audited(name, None, clients, seed)}
        try:
            kept = {row["target"]: row for row in audited(name, "epsilon=1,delta=1e-3", clients, seed)}
        except UsageError as error:
            kept = {}
            print(f"{name} at ε = 1 is refused: {error}", file=sys.stderr)
        for target, row in free.items():
            private = [plainly(kept[target][what]) if kept else "refused" for what in ("auc", "tpr")]
            cells = [name, target, plainly(row["auc"]), private[0], plainly(row["tpr"]), private[1]]
            print(f"| {' | '.join(cells)} |", flush=True)
            known.append(dict(zip(("method", "target", "auc", "private"), cells, strict=False)))
    keep("audit", {"machine": about, "seed": seed, "rows": known})


def splits(count: int, clients: int = 2) -> None:
    """FedAvg at ε = 1 on small splits, and beside it the model before training: what the split alone does to an AUC."""
    found = []
    for seed in range(1, count + 1):
        method = {"name": "fedavg", **LEARNT_BY_HEART}
        private = wrapped("epsilon=1,delta=1e-3")
        size = {"clients": clients, "samples": EACH * clients}
        plan = experiment({"method": method, **FEW, **size, "seed": seed, "wrappers": private})
        with tempfile.TemporaryDirectory() as folder:
            start(plan, out=Path(folder), name="run")
            scene = opened(RunDir.open(Path(folder) / "run"))
        env, pair = scene.ready.env, []
        for weights in (scene.after.server.weights, env.initial()):
            module = env.module(weights)
            both = [[scores(scene, module, part) for part in own_others(scene, k)] for k in range(env.clients)]
            pair.append(auc(*(np.concatenate(part) for part in zip(*both, strict=True))))
        found.append(pair)
        print(f"seed {seed}: AUC {pair[0]:.3f}, before training {pair[1]:.3f}", flush=True)
    for name, column in zip(("ε = 1", "before training"), np.array(found).T, strict=True):
        print(f"{name}: mean {column.mean():.3f}, standard error {column.std(ddof=1) / np.sqrt(count):.3f}")


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--record"]
    if words[:1] == ["--splits"]:
        splits(int(words[1]))
    else:
        table(words or list(METHODS))
