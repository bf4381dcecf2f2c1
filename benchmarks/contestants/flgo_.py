"""FLGo, in one process, by a benchmark package that it is given."""

import os
import sys
import tempfile
import types
import warnings
from collections.abc import Callable
from typing import Any

os.chdir(tempfile.mkdtemp(prefix="peer-"))  # it keeps files where it is started
warnings.simplefilter("ignore")

import flgo  # noqa: E402
import flgo.algorithm.fedavg as fedavg  # noqa: E402
import flgo.benchmark.partition as partition  # noqa: E402
from flgo.benchmark.toolkits.cv.classification import (  # noqa: E402
    FromDatasetGenerator,
    FromDatasetPipe,
    GeneralCalculator,
)
from flgo.experiment.logger import BasicLogger  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402
from work import Work, accuracy, timed  # noqa: E402


def benchmark(work: Work) -> Any:
    """The work as the module that FLGo wants, with its `core`."""
    x, y, x_test, y_test = work.arrays()
    train, test = TensorDataset(x, y), TensorDataset(x_test, y_test)

    class TaskGenerator(FromDatasetGenerator):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(benchmark="work", train_data=train, val_data=None, test_data=test)

    class TaskPipe(FromDatasetPipe):  # type: ignore[misc]
        class TaskDataset(FromDatasetPipe.TaskDataset):  # type: ignore[misc,name-defined]
            def __getitems__(self, places: list[int]) -> list[Any]:  # torch asks for it beside its __getitem__
                return [self[place] for place in places]

        def __init__(self, task_path: str) -> None:
            super().__init__(task_path, train_data=train, val_data=None, test_data=test)

    TaskGenerator.__module__ = "work_benchmark.core"  # by which it finds the module again
    made, core = types.ModuleType("work_benchmark"), types.ModuleType("work_benchmark.core")
    core.TaskGenerator, core.TaskPipe, core.TaskCalculator = TaskGenerator, TaskPipe, GeneralCalculator  # type: ignore[attr-defined]
    made.core, made.__path__, made.visualize = core, [], lambda *_: None  # type: ignore[attr-defined]
    made.default_model = None  # type: ignore[attr-defined]
    sys.modules.update({"work_benchmark": made, "work_benchmark.core": core})
    return made


def contestant(work: Work, mark: Callable[[], None]) -> float:
    """FedAvg, as many clients a round."""

    class Server(fedavg.Server):  # type: ignore[misc]
        def iterate(self) -> Any:
            found = super().iterate()
            mark()
            return found

    class Silent(BasicLogger):  # type: ignore[misc]
        def log_once(self, *_: Any, **__: Any) -> None:
            """Nothing: the model is examined at the end."""

    algorithm = types.SimpleNamespace(__name__="work_fedavg", Server=Server, Client=fedavg.Client)
    flgo.gen_task_by_(benchmark(work), partition.IIDPartitioner(num_clients=work.clients), "task")
    option = {
        "num_rounds": work.rounds, "proportion": work.active / work.clients, "num_epochs": work.epochs,
        "batch_size": work.batch, "learning_rate": work.lr, "train_holdout": 0.0, "test_holdout": 0.0,
        "gpu": [], "num_parallels": 1, "eval_interval": -1, "no_log_console": True, "seed": work.seed,
        "sample": "uniform", "aggregate": "uniform",
    }  # fmt: skip

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = work.model()

        def forward(self, x: Tensor) -> Any:
            return self.inner(x)

    model = flgo.convert_model(Net, "work_model")
    runner = flgo.init("task", algorithm, option, model=model, Logger=Silent)
    runner.run()
    _, _, x_test, y_test = work.arrays()
    return accuracy(runner.model, x_test, y_test)


if __name__ == "__main__":
    timed(contestant)
