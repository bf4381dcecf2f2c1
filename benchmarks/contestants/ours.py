"""fedstill, by its public functions."""

from collections.abc import Callable
from typing import Any

import numpy as np
from work import Work, timed

import fedstill as fs
from fedstill.parts.gather import Everyone


class Marks(fs.Watcher):
    """Marks the end of every round."""

    def __init__(self, mark: Callable[[], None]) -> None:
        self.mark = mark

    def round(self, row: Any) -> None:
        """A round has ended."""
        self.mark()


def contestant(work: Work, mark: Callable[[], None]) -> float:
    """FedAvg or, where there are public samples, FedMD; only the last round is examined."""
    x, y, x_test, y_test = (part.numpy() for part in work.arrays())
    training: dict[str, Any] = {"lr": work.lr, "epochs": work.epochs, "batch": work.batch}
    settings: dict[str, Any] = {
        "clients": work.clients, "active": work.active, "rounds": work.rounds, "seed": work.seed,
        "evaluate_every": work.rounds, "out": None, "progress": False, "watcher": Marks(mark),
        "partition": {"name": "iid"},
    }  # fmt: skip
    if work.public:
        share = work.public / (work.public + len(x))
        data = (np.concatenate([x_test[: work.public], x]), np.concatenate([y_test[: work.public], y]))
        models = tuple(f"models:{name}" for name in ("first", "second", "third", "fourth", "fifth"))
        method = fs.FedMD(pretrain=1, digest=1, **training)
        tests = (x_test[work.public :], y_test[work.public :])
        result = fs.run(method, data=(*data, *tests), models=models, public=share, local_test=0, **settings)
        return float(result.rows[-1]["models"]["personal"]["accuracy"])
    model = work.model() if work.name == "tiny" else "lenet5-gemm"  # LeNet-5 in its fastest form
    method = fs.FedAvg(gather=Everyone(), **training)
    result = fs.run(method, data=(x, y, x_test, y_test), model=model, local_test=0, **settings)
    return float(result.rows[-1]["models"]["active"]["accuracy"])


if __name__ == "__main__":
    timed(contestant)
