"""fluke, in one process."""

import os
import tempfile
from collections.abc import Callable
from typing import Any

os.chdir(tempfile.mkdtemp(prefix="peer-"))  # it keeps files where it is started

import torch  # noqa: E402

# torchvision, which it imports, may have been built for another torch; it is not used, and these declarations suffice.
_declared = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    _declared.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from fluke import DDict, FlukeENV  # noqa: E402
from fluke.algorithms.fedavg import FedAVG  # noqa: E402
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader  # noqa: E402
from fluke.evaluation import ClassificationEval  # noqa: E402
from work import Work, accuracy, timed  # noqa: E402


def contestant(work: Work, mark: Callable[[], None]) -> float:
    """FedAvg, as many clients a round."""
    x, y, x_test, y_test = work.arrays()
    FlukeENV().set_seed(work.seed)
    FlukeENV().set_device("cpu")
    FlukeENV().set_inmemory(True)
    FlukeENV().set_evaluator(ClassificationEval(eval_every=10**9, n_classes=10))
    FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, server=False, locals=False)
    parts = [
        FastDataLoader(x[work.part(k)], y[work.part(k)], num_labels=10, batch_size=work.batch, shuffle=True)
        for k in range(work.clients)
    ]
    splitter = DataSplitter(DummyDataContainer(parts, [None] * work.clients, None, 10))  # type: ignore[arg-type,list-item]
    settings = DDict(
        model=work.model(),
        client=DDict(
            batch_size=work.batch,
            local_epochs=work.epochs,
            loss="CrossEntropyLoss",
            optimizer=DDict(name="SGD", lr=work.lr),
            scheduler=DDict(name="StepLR", step_size=1, gamma=1.0),
        ),
        server=DDict(weighted=True),
    )
    federation = FedAVG(work.clients, splitter, settings)

    class Marks:
        def __getattr__(self, event: str) -> Any:
            return lambda *_, **__: mark() if event == "end_round" else None

    federation.attach(Marks())
    federation.run(work.rounds, work.active / work.clients)
    return accuracy(federation.server.model, x_test, y_test)


if __name__ == "__main__":
    timed(contestant)
