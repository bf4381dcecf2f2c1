"""Ten short runs whose bits a refactoring must not change.

`golden.json` holds a digest of each run's last checkpoint and scores, by the versions and the processor they were made
with. Every run has a process of its own whose kernels are held to AVX2, so that many newer processors make the same
bits. Where versions or processor are others and round differently, a projection of the weights must agree. On such a
machine `python tests/contract/test_golden.py` at a commit whose results are known to be right adds its entry; after a
change that is meant to change results, empty the file first.
"""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from smallest import small_experiment, small_method

from fedstill.core.record import leaves
from fedstill.experiment.run import start
from fedstill.experiment.rundir import RunDir, versions

FILE = Path(__file__).with_name("golden.json")
DECIDES = ("torch", "numpy", "scikit-learn", "cpu", "processor")
"""The versions that decide bits besides the experiment."""
HELD_TO_AVX2 = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}

RUNS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "fedavg": ("fedavg", {"momentum": 0.9}, {}),
    "fedavg, slots on the clients": ("fedavg", {"gather": {"name": "remember", "slots": "client"}}, {}),
    "fedkf": ("fedkf", {}, {}),
    "fedkf as its authors": ("fedkf", {"profile": "authors"}, {"model": "lenet5", "samples": 200}),
    "dafkd": ("dafkd", {"local_steps": 4}, {}),
    "fedrad": ("fedrad", {}, {}),
    "fedtkd under attack": (
        "fedtkd",
        {"gather": "identify"},
        {"attack": "logit-flip", "malicious": "0.5", "active": 1.0},
    ),
    "feddf": ("feddf", {}, {}),
    "fedgen": ("fedgen", {}, {}),
    "krum under attack": ("fedprox", {"gather": "krum"}, {"attack": "sign-flip", "malicious": "0.34", "active": 1.0}),
}


def digest(name: str, runs: Path) -> dict[str, Any]:
    """What a run left: a digest of all tensors and scores, its server's weights on a line, and its last AMP."""
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
    weights = torch.cat([t.double().flatten() for _, t in sorted(leaves(state.server)) if t.is_floating_point()])
    line = torch.cos(
        torch.arange(len(weights), dtype=torch.float64)
    )  # signs change, so that nothing is hidden in a sum
    amp = {m: s["amp"] for m, s in scores[-1].items()}
    return {
        "sha256": mark.hexdigest(),
        "projection": float(weights @ line),
        "length": float(weights.norm()),
        "amp": amp,
    }


def made(name: str) -> dict[str, Any]:
    """The digest of a run in a process of its own, and what decided its bits."""
    places = os.pathsep.join([str(FILE.parents[1]), *sys.path])
    known = os.environ | HELD_TO_AVX2 | {"PYTHONPATH": places}
    done = subprocess.run([sys.executable, __file__, name], env=known, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("name", RUNS)
def test_a_run_gives_the_bits_it_always_gave(name: str) -> None:
    golden = json.loads(FILE.read_text())
    found = made(name)
    exact = [entry["runs"][name] for entry in golden if entry["made with"] == found["made with"]]
    wanted = (exact or [entry["runs"][name] for entry in golden])[0]
    if exact:
        assert found["run"] == wanted
    else:
        near = (1e-4 if name == "fedgen" else 1e-6) * wanted["length"]  # its generator's Adam enlarges what is rounded
        assert found["run"]["projection"] == pytest.approx(wanted["projection"], abs=near)
        assert found["run"]["amp"] == pytest.approx(wanted["amp"], abs=0.05)


if __name__ == "__main__":
    import tempfile

    torch.set_num_threads(1)
    if len(sys.argv) > 1:
        with tempfile.TemporaryDirectory() as folder:
            run = digest(sys.argv[1], Path(folder))
        print(json.dumps({"made with": {key: versions()[key] for key in DECIDES}, "run": run}))
    else:
        every = {name: made(name) for name in RUNS}
        together = next(iter(every.values()))["made with"]
        runs = {name: found["run"] for name, found in every.items()}
        others = [entry for entry in json.loads(FILE.read_text() or "[]") if entry["made with"] != together]
        FILE.write_text(json.dumps([*others, {"made with": together, "runs": runs}], indent=1) + "\n")
