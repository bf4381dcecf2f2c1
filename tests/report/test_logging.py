"""Logging elsewhere: what TensorBoard, MLflow, Weights & Biases and Trackio get, by stand-ins that only remember."""

import sys
import types
from pathlib import Path
from typing import Any

import pytest
from looked_at import LIGHT, PLAN

from fedstill.core.errors import UsageError
from fedstill.experiment.config import experiment
from fedstill.experiment.run import Watcher, start
from fedstill.report.logging import logged, scalars


class Book(types.ModuleType):
    """A module of any name that remembers its calls."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.calls: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **more: self.calls.append((name, (args, more)))


def run(log: str, out: Path) -> Any:
    with logged(Watcher(), log) as watcher:
        return start(experiment({"method": LIGHT["fedavg"], **PLAN, "rounds": 2}), out=out, name="a", watcher=watcher)


def test_tensorboard_gets_every_number_of_a_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = Book("torch.utils.tensorboard")
    book.SummaryWriter = lambda folder, purge_step: book.calls.append(("open", folder)) or book  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", book)
    result = run("tensorboard", tmp_path)
    assert book.calls[0] == ("open", str(tmp_path / "a" / "tensorboard"))
    written = {(args[0], args[2]): args[1] for name, (args, _) in book.calls[1:] if name == "add_scalar"}
    assert written["overall/amp", 2] == result.rows[1]["models"]["overall"]["amp"]
    assert written["bytes/up", 1] == sum(result.rows[0]["bytes"]["up"].values())
    assert book.calls[-1][0] == "close"


def test_mlflow_gets_settings_and_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = Book("mlflow")
    monkeypatch.setitem(sys.modules, "mlflow", book)
    result = run("mlflow", tmp_path)
    calls = dict(book.calls)
    assert calls["log_params"][0][0]["method.lr"] == "0.1"
    assert calls["log_metrics"] == ((scalars(result.rows[1]),), {"step": 2})
    assert book.calls[-1] == ("end_run", (("FINISHED",), {}))


def test_a_run_that_fails_is_logged_as_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    book = Book("mlflow")
    monkeypatch.setitem(sys.modules, "mlflow", book)

    def broken() -> None:
        with logged(Watcher(), "mlflow") as watcher:
            watcher.started(experiment({"method": "fedavg"}), None, None, 0)  # type: ignore[arg-type]
            raise RuntimeError("no more")

    with pytest.raises(RuntimeError):
        broken()
    assert book.calls[-1] == ("end_run", (("FAILED",), {}))


@pytest.mark.parametrize(
    ("log", "module"),
    [
        ("tensorboard", "torch.utils.tensorboard"),
        ("mlflow", "mlflow"),
        ("wandb", "wandb"),
        ("trackio", "trackio"),
    ],
)
def test_a_missing_extra_is_named(log: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with (
        pytest.raises(UsageError, match=rf"log = {log}: needs an extra: pip install 'fedstill\[{log}\]'"),
        logged(Watcher(), log),
    ):
        pass


def test_numbers_only() -> None:
    row = {
        "models": {"active": {"amp": 0.5, "fm": None, "wlp": float("nan"), "accuracy": 1}},
        "bytes": {"down": {"a": 1, "b": 2}, "up": {}},
        "seconds": {"clients": 0.25},
        "facts": {"trusted": [1, 2], "drift": 0.125, "good": True},
        "missing": {"3": "gone"},
    }
    want = {"active/amp": 0.5, "active/accuracy": 1.0, "bytes/down": 3.0, "bytes/up": 0.0, "seconds/clients": 0.25}
    assert scalars(row) == {**want, "facts/drift": 0.125, "clients/missing": 1.0}


def test_an_unknown_logger_lists_the_known() -> None:
    with pytest.raises(UsageError, match=r"log = 'paper': must be one of tensorboard, mlflow, wandb, trackio"):
        logged(Watcher(), "paper")


@pytest.mark.parametrize(("log", "end", "best"), [
    ("wandb", {"exit_code": 0}, {"overall/amp": "max", "active/fm": "min"}),
    ("trackio", {}, {"overall/amp": None, "active/fm": None}),
])  # fmt: skip
def test_a_board_gets_settings_and_rounds(
    log: str, end: dict[str, int], best: dict[str, str | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = Book(log)
    monkeypatch.setitem(sys.modules, log, book)
    result = run(log, tmp_path)
    (first, (_, opened)), *rounds, (last, (_, closed)) = book.calls
    assert (first, opened["project"], opened["name"]) == ("init", "fedstill", "a")
    assert opened["config"]["method.name"] == "fedavg"
    logs = [call for call in rounds if call[0] == "log"]
    assert logs == [("log", ((scalars(row),), {"step": row["round"]})) for row in result.rows]
    better = {args[0]: more["summary"] for name, (args, more) in rounds if name == "define_metric"}
    assert {name: better.get(name) for name in ("overall/amp", "active/fm")} == best
    assert (last, closed) == ("finish", end)


def test_weights_and_biases_is_told_of_a_run_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = Book("wandb")
    monkeypatch.setitem(sys.modules, "wandb", book)
    plan = experiment({"method": LIGHT["fedavg"], **PLAN, "rounds": 2})

    class Broken(Watcher):
        def round(self, row: Any) -> None:
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"), logged(Broken(), "wandb") as watcher:
        start(plan, out=tmp_path, name="a", watcher=watcher)
    assert book.calls[-1] == ("finish", ((), {"exit_code": 1}))
