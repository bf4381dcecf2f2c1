"""pfl (Apple), its simulator in one process."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import nn
from work import Work, accuracy, timed


class Net(nn.Module):
    """The model with the loss that pfl asks for."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def loss(self, x: torch.Tensor, y: torch.Tensor, eval: bool = False) -> torch.Tensor:
        """Cross-entropy."""
        self.train(not eval)
        return nn.functional.cross_entropy(self.inner(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor, eval: bool = False) -> dict[str, Any]:
        """None: the model is examined at the end."""
        return {}


def contestant(work: Work, mark: Callable[[], None]) -> float:
    """FedAvg over the clients of each round in turn."""

    class Marks(TrainingProcessCallback):
        def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
            mark()
            return False, Metrics()

    np.random.seed(work.seed)
    x, y, x_test, y_test = work.arrays()
    order = iter([client for t in range(work.rounds) for client in work.active_in(t)])
    parts = [Dataset([x[work.part(k)], y[work.part(k)]]) for k in range(work.clients)]
    training = FederatedDataset(lambda client: parts[client], lambda: next(order))
    net = Net(work.model())
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=work.rounds,
            evaluation_frequency=work.rounds + 1,
            train_cohort_size=work.active,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=training, val_data=None),  # type: ignore[arg-type]
        model,
        NNTrainHyperParams(local_num_epochs=work.epochs, local_learning_rate=work.lr, local_batch_size=work.batch),
        None,
        callbacks=[Marks()],
    )
    return accuracy(net.inner, x_test, y_test)


if __name__ == "__main__":
    timed(contestant)
