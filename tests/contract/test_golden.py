"""Ten short runs whose bits a refactoring must not change.

`golden.json` holds a digest of each run's last checkpoint and scores, and the versions and processor they were made
with. There the bits must be the same; elsewhere, where kernels round differently, the sums of the weights must agree.
After a change that is meant to change results: `python tests/contract/test_golden.py`.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from smallest import small_experiment, small_method

from fedstill.core.record import leaves
from fedstill.experiment.run import start
from fedstill.experiment.rundir import RunDir, versions

FILE = Path(__file__).with_name("golden.json")
DECIDES = ("torch", "numpy", "scikit-learn", "cpu")
"""The versions that decide bits besides the experiment."""

RUNS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "fedavg": ("fedavg", {"momentum": 0.9}, {}),
    "fedavg, slots on the clients": ("fedavg", {"gather": {"name": "remember", "slots": "client"}}, {}),
    "fedkf": ("fedkf", {}, {}),
    "fedkf as its authors": ("fedkf", {"profile": "authors"}, {"model": "lenet5", "samples": 200}),
    "dafkd": ("dafkd", {"local_steps": 4}, {}),
    "fedrad": ("fedrad", {}, {}),
    "fedtkd under attack": ("fedtkd", {}, {"attack": "logit-flip", "malicious": "0.5", "active": 1.0}),
    "feddf": ("feddf", {}, {}),
    "fedgen": ("fedgen", {}, {}),
    "krum under attack": ("fedprox", {"gather": "krum"}, {"attack": "sign-flip", "malicious": "0.34", "active": 1.0}),
}


def digest(name: str, runs: Path) -> dict[str, Any]:
    """What a run left: a digest of all tensors and scores, and the sum of its server's absolute weights."""
    method, settings, experiment = RUNS[name]
    start(small_experiment(small_method(method, **settings), **experiment), out=runs, name="golden")
    folder = RunDir.open(runs / "golden")
    state, notes = folder.latest()
    assert state is not None
    assert notes == []
    mark = hashlib.sha256()
    for where, part in [("server", state.server), *((f"client {k}", state.clients[k]) for k in sorted(state.clients))]:
        for path, tensor in sorted(leaves(part)):
            mark.update(f"{where}{path}{tuple(tensor.shape)}{tensor.dtype}".encode())
            mark.update(tensor.contiguous().numpy().tobytes())
    scores = [
        {m: {k: s[k] for k in ("amp", "fm", "wlp", "accuracy")} for m, s in r["models"].items()} for r in folder.rows()
    ]
    mark.update(json.dumps(scores, sort_keys=True).encode())
    total = sum(float(t.double().abs().sum()) for _, t in leaves(state.server) if t.is_floating_point())
    return {"sha256": mark.hexdigest(), "total": total, "amp": {m: s["amp"] for m, s in scores[-1].items()}}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_gives_the_bits_it_always_gave(name: str, tmp_path: Path) -> None:
    golden = json.loads(FILE.read_text())
    found, wanted = digest(name, tmp_path), golden["runs"][name]
    here = {key: versions()[key] for key in DECIDES}
    if here == golden["made with"]:
        assert found == wanted
    else:
        assert found["total"] == pytest.approx(wanted["total"], rel=1e-3)
        assert found["amp"] == pytest.approx(wanted["amp"], abs=0.05)


if __name__ == "__main__":
    import tempfile

    torch.set_num_threads(1)
    made: dict[str, Any] = {"made with": {key: versions()[key] for key in DECIDES}, "runs": {}}
    for title in RUNS:
        with tempfile.TemporaryDirectory() as folder:
            made["runs"][title] = digest(title, Path(folder))
    FILE.write_text(json.dumps(made, indent=1) + "\n")
