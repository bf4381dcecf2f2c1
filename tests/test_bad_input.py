"""A hundred and twenty kinds of bad input: one clear line, exit code 2, and nothing written or lost."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from smallest import small_experiment, small_method

import fedstill as fs
from fedstill.cli import main
from fedstill.core.errors import FedstillError, RunError
from fedstill.experiment.run import start

SMALL = "--data digits --samples 200 --clients 4 --rounds 1 --workers inline"
X = np.zeros((12, 8, 8), np.uint8)
Y = np.arange(12) % 3

RUN: list[tuple[str, str]] = [
    # names that nobody knows
    ("fedavgg", "unknown method 'fedavgg'; did you mean fedavg?"),
    ("FEDAVG", "unknown method 'FEDAVG'"),
    ("fedavg --data minst", "unknown data set 'minst'; did you mean mnist?"),
    ("fedavg --model lenet6", "unknown model 'lenet6'; did you mean lenet5?"),
    ("fedavg --models mlp,lenet6", "lenet6"),
    ("fedmd --public 0.2 --clients 2 --models mlp,mlp,mlp", "models = mlp, mlp, mlp: 3 names for 2 clients"),
    ("fedavg --partition diriclet", "unknown partition 'diriclet'; did you mean dirichlet?"),
    ("fedavg --attack flip --malicious 0.5", "unknown attack 'flip'"),
    ("fedavg --set gather=krumm", "unknown gather 'krumm'; did you mean krum?"),
    ("fedavg --set learning_rate=1", "unknown setting of FedAvg 'learning_rate'"),
    ("fedavg --partition dirichlet --set partition.beta=1", "unknown setting of Dirichlet 'beta'"),
    ("fedavg --set optimizer=sdg", "optimizer = 'sdg': must be one of"),
    ("fedavg --set clients.few=2", "--set 'clients.few=2': clients = 4 has no settings of its own"),
    ("fedavg --private epsilon=8,delta=1e-5 --set wrappers.clip=2", "--set 'wrappers.clip=2': wrappers = [{'name': "),
    ("fedavg --private epsilon=8 --private epsilon=4", "--private 'epsilon=4': samples were asked for before"),
    ("fedavg --private epsilon=8,delta=0.5", "wrappers = private-samples: delta = 0.5: must be < 1/"),
    ("fedavg --private epsilon=1e-9", "epsilon = 1e-09: no noise below"),
    ("fedavg --private noise=0.5,epsilon=1", "noise = 0.5: one turn of client 0 costs ε = "),
    (
        "fedavg --secure-sums --active 0.25",
        "wrappers = secure-sums: active = 1: the sum would be one client's own upload",
    ),
    ("fedkf --set profile=author", "profile = 'author': must be one of"),
    ("fedkf --set generator=gan", "gan"),
    ("fedavg --device tpu", "'tpu' is not one of 'auto', 'cpu', 'cuda', 'mps'"),
    ("fedavg --set transport=mail", "transport = 'mail': must be one of"),
    ("fedavg --set transport=flower", "fedstill deploy"),
    ("fedavg --set metric=acuracy", "acuracy"),
    # numbers out of bounds
    ("fedavg --clients 0", "clients = 0: must be ≥ 1"),
    ("fedavg --clients -3", "clients = -3: must be ≥ 1"),
    ("fedavg --rounds 0", "rounds = 0: must be ≥ 1"),
    ("fedavg --rounds -1", "rounds = -1: must be ≥ 1"),
    ("fedavg --seed -1", "seed = -1: must be ≥ 0"),
    ("fedavg --active 0", "active = 0.0: must be > 0"),
    ("fedavg --active -0.5", "active = -0.5: must be > 0"),
    ("fedavg --active 1.5", "active = 1.5: must be a share ≤ 1 or a whole number"),
    ("fedavg --active 9", "active = 9: there are only 4 clients"),
    ("fedavg --active nan", "active = nan: must be a number"),
    ("fedavg --alpha 0", "alpha = 0.0: must be > 0"),
    ("fedavg --alpha -1", "alpha = -1.0: must be > 0"),
    ("fedavg --alpha nan", "alpha = nan: must be a number"),
    ("fedavg --samples -5", "samples = -5: must be ≥ 0"),
    ("fedavg --samples 1000000", "samples = 1000000: digits has only"),
    ("fedavg --local-test 1", "local_test = 1.0: must be < 1"),
    ("fedavg --local-test -0.1", "local_test = -0.1: must be ≥ 0"),
    ("fedavg --drop 1.1", "drop = 1.1: must be ≤ 1"),
    ("fedavg --drop -1", "drop = -1.0: must be ≥ 0"),
    ("fedmd --public 1.5", "public = 1.5: must be a share > 0 and < 1"),
    ("fedmd --public 0", "public = 0.0: must be a share > 0 and < 1"),
    ("fedmd --public -1", "public = -1.0: must be a share > 0 and < 1"),
    ("fedavg --workers 0", "workers = 0: must be a number ≥ 1, auto, inline or threads"),
    ("fedavg --workers many", "workers = many: must be a number ≥ 1"),
    ("fedavg --workers -2", "workers = -2: must be a number ≥ 1"),
    ("fedavg --set lr=0", "lr = 0.0: must be > 0"),
    ("fedavg --set lr=-1", "lr = -1.0: must be > 0"),
    ("fedavg --set lr=nan", "lr = nan: must be a number"),
    ("fedavg --set epochs=0", "epochs = 0: must be ≥ 1"),
    ("fedavg --set batch=0", "batch = 0: must be ≥ 1"),
    ("fedavg --set momentum=-1", "momentum = -1.0: must be ≥ 0"),
    ("fedavg --set weight_decay=-1", "weight_decay = -1.0: must be ≥ 0"),
    ("fedavg --set evaluate_every=0", "evaluate_every = 0: must be ≥ 1"),
    ("fedavg --set checkpoint_every=0", "checkpoint_every = 0: must be ≥ 1"),
    ("fedavg --set memory=-1", "memory = -1: must be ≥ 0"),
    ("fedavg --set patience=0", "patience = 0: must be ≥ 1"),
    ("fedavg --set deadline=0", "deadline = 0.0: must be > 0"),
    ("fedavg --set quarantine=0", "quarantine = 0: must be ≥ 1"),
    ("fedavg --set split_seed=-1", "split_seed = -1: must be ≥ 0"),
    ("fedprox --set mu=-1", "mu = -1.0: must be ≥ 0"),
    # of the wrong type
    ("fedavg --set lr=fast", "lr = 'fast': must be a number"),
    ("fedavg --set epochs=1.5", "epochs = '1.5': must be a whole number"),
    ("fedavg --set epochs=two", "epochs = 'two': must be a whole number"),
    ("fedavg --set balanced=perhaps", "balanced = 'perhaps': must be true or false"),
    ("fedavg --set per_class=7", "per_class = '7': must be true or false"),
    ("fedavg --set memory=lots", "memory = 'lots': must be a whole number"),
    ("fedavg --set patience=long", "patience = 'long': must be a whole number"),
    ("fedavg --set lr", "--set 'lr': must be name=value"),
    ("fedavg --set =1", "--set '=1': must be name=value"),
    ("fedavg --set partition={name", "--set …={name"),
    ("fedavg --set partition={alpha=", "--set …={alpha="),
    ("fedavg --malicious x --attack sign-flip", "malicious = 'x': must be a number"),
    # things that do not go together
    ("fedavg --attack sign-flip", "attack and malicious go together"),
    ("fedavg --malicious 0.5", "attack and malicious go together"),
    ("fedavg --attack sign-flip --malicious 7", "malicious = 7: there are only 4 clients, from 0"),
    ("fedavg --models mlp,lenet5", "fedavg averages weights, so all clients need one model"),
    ("fedavg --set gather=identify", "gather = identify"),
    ("fedavg --attack logit-flip --malicious 0.5", "attack = logit-flip"),
    ("centralised --attack sign-flip --malicious 0.5", "has no clients that could attack"),
    ("fedavg --clients 300", "200 samples for 300 clients"),
    ("fedavg --model resnet8x --data digits", "unknown model"),
    ("fedavg --model no_such_module:make", "model = 'no_such_module:make': cannot import no_such_module"),
    ("fedavg --model json:nothing", "cannot import 'nothing' from json"),
    ("fedavg --model json:loads", "loads"),
    ("fedavg --partition shards --set partition.classes_per_client=0", "classes_per_client = 0: must be ≥ 1"),
    ("fedavg --set fingerprint=0123456789abcdef", "not the samples that this run had"),
    # files
    ("no.toml", "no.toml: no such file"),
    ("no.json", "no.json: no such file"),
    ("{dir}/broken.toml", "broken.toml:"),
    ("{dir}/broken.json", "broken.json:"),
    ("{dir}/odd.toml", "unknown setting of Experiment 'clints'; did you mean clients?"),
    ("fedavg --data {dir}/no.npz", "no.npz: no such file or folder"),
    ("fedavg --data {dir}/broken.npz", "broken.npz"),
    ("fedavg --data {dir}/empty.npz", "no x_train inside"),
    ("fedavg --data {dir}/half.npz", "no y_train inside"),
    ("fedavg --data {dir}/odd.toml", "odd.toml"),
    ("fedavg --data {dir}/images", "images"),
    ("fedavg --out {dir}/odd.toml", "cannot write there"),
]

COMMANDS: list[tuple[str, str]] = [
    ("resume {dir}/no", "not a run (no experiment.json there)"),
    ("resume {dir}/run --rounds 0", "rounds = 0: {dir}/run has done 1 rounds already"),
    ("compare {dir}/no", "nothing to show"),
    ("report {dir}/no -o {dir}/page.html", "nothing to show"),
    ("predict {dir}/no {dir}/x.png", "not a run"),
    ("predict {dir}/run {dir}/x.png", "x.png: no such file"),
    ("predict {dir}/run {dir}/odd.toml", "odd.toml: not an image that can be read"),
    ("predict {dir}/run {dir}/broken.npy", "broken.npy: not an array that can be read"),
    ("predict {dir}/run {dir}/odd.toml --model best", "unknown model of this run 'best'"),
    ("export {dir}/run {dir}/model.bin", "must end in .onnx, .pt2, .safetensors"),
    ("export {dir}/run {dir}/odd.toml/model.safetensors", "cannot write there"),
    ("export {dir}/no {dir}/model.pt2", "not a run"),
    ("show fedavgg", "fedavgg"),
    ("ls thing", "thing"),
    ("watch {dir}/no", "no such folder"),
    ("sweep fedavg --data digits", "no --grid: say what to vary"),
    ("sweep fedavg --grid lr", "--grid 'lr': must be name=value"),
    ("sweep fedavg --grid lr=0.1,0.2 --set seed=7", "say how many with --seeds"),
    ("sweep fedavg --grid lr=0.1,-1 --data digits --out {dir}/sweep", "lr = -1.0: must be > 0"),
    ("reproduce nothing", "nothing"),
    ("run fedavg --clients many", "many"),
    ("run", "Missing argument 'WHAT'"),
    ("flow", "flow"),
]

PYTHON: list[tuple[str, Callable[[], dict[str, Any]], str]] = [
    ("NaN", lambda: {"data": (np.full((9, 8, 8), np.nan), np.arange(9) % 3)}, "x has NaN or infinite values"),
    ("infinite", lambda: {"data": (np.full((9, 8, 8), np.inf), np.arange(9) % 3)}, "x has NaN or infinite values"),
    ("too few labels", lambda: {"data": (X, Y[:-1])}, "12 images but 11 labels"),
    ("one class", lambda: {"data": (X, Y * 0)}, "at least two classes are needed"),
    ("negative label", lambda: {"data": (X, Y - 1)}, "label -1"),
    ("half labels", lambda: {"data": (X, Y + 0.5)}, "must be a whole number ≥ 0"),
    ("no samples", lambda: {"data": (X[:0], Y[:0])}, "empty"),
    ("ragged", lambda: {"data": ([[[1, 2], [3]], [[1], [2]]], [0, 1])}, "ragged"),
    ("text", lambda: {"data": (np.full((9, 8, 8), "a"), np.arange(9) % 3)}, "must be numbers"),
    ("a number", lambda: {"data": 7}, "data"),
    ("no client", lambda: {"data": []}, "clients = 0: must be ≥ 1"),
    ("odd client", lambda: {"data": [(X, Y), 5]}, "client 1"),
    ("other sizes", lambda: {"data": [(X, Y), (X[:, :4], Y)]}, "client 1: images are"),
    ("a partition of one's own", lambda: {"partition": lambda y: y}, "partition"),
    ("model that is no module", lambda: {"model": lambda: 5}, "must give a torch.nn.Module"),
    ("no model", lambda: {"model": 5}, "model"),
    ("unknown setting", lambda: {"clints": 5}, "unknown setting of Experiment 'clints'; did you mean clients?"),
    ("list for a number", lambda: {"clients": [1, 2]}, "clients = [1, 2]: must be a whole number"),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that can be wrong in it, and one small run."""
    here = tmp_path_factory.mktemp("bad")
    (here / "broken.toml").write_text("a = = 1\n")
    (here / "broken.json").write_text('{"a": ')
    (here / "odd.toml").write_text('method = "fedavg"\nclints = 3\n')
    (here / "broken.npz").write_bytes(b"PK no")
    (here / "broken.npy").write_bytes(b"no")
    np.savez(here / "empty.npz")
    np.savez(here / "half.npz", x_train=X)
    (here / "images" / "cats").mkdir(parents=True)
    (here / "images" / "cats" / "no.png").write_bytes(b"no")
    start(small_experiment(small_method("fedavg"), rounds=1), out=here, name="run")
    return here


def content(folder: Path) -> dict[str, bytes]:
    return {str(f): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


def refused(words: list[str], line: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = content(place)
    with pytest.raises(SystemExit) as leave:
        main(words)
    said = capsys.readouterr().err.strip()
    assert leave.value.code == 2, said
    assert line in " ".join(said.split()), said
    assert "Traceback" not in said
    assert content(place) == before, "nothing is written or lost"


def ran(words: str, place: Path) -> list[str]:
    name, *rest = words.replace("{dir}", str(place)).split()
    given = [word for word in SMALL.split() if word.startswith("--") and word not in rest]
    usual = [w for option in given for w in (option, SMALL.split()[SMALL.split().index(option) + 1])]
    usual = [] if name.endswith((".toml", ".json")) else usual
    out = [] if "--out" in rest else ["--out", str(place / "out")]
    return ["run", name, *usual, *rest, *out]


@pytest.mark.parametrize(("words", "line"), RUN, ids=[words for words, _ in RUN])
def test_a_run_is_refused_before_it_starts(
    words: str, line: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(ran(words, place), line, place, capsys)


@pytest.mark.parametrize(("words", "line"), COMMANDS, ids=[words for words, _ in COMMANDS])
def test_a_command_is_refused(words: str, line: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(words.replace("{dir}", str(place)).split(), line.replace("{dir}", str(place)), place, capsys)


@pytest.mark.parametrize(("settings", "line"), [p[1:] for p in PYTHON], ids=[p[0] for p in PYTHON])
def test_what_python_gives_is_refused(settings: Callable[[], dict[str, Any]], line: str, runs: Path) -> None:
    plan: dict[str, Any] = {"data": "digits", "samples": None, "clients": 3, "rounds": 1, "workers": "inline"}
    with pytest.raises(FedstillError) as error:
        fs.run(small_method("fedavg"), out=runs, **{**plan, **settings()})
    assert line in str(error.value)
    assert "\n" not in str(error.value)
    assert not isinstance(error.value, RunError)
    assert not runs.exists()


def test_there_are_a_hundred_and_twenty_of_them() -> None:
    assert len({*RUN, *COMMANDS}) + len(PYTHON) >= 120
