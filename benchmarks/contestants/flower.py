"""Flower's simulation: one virtual node for each client, on Ray, a core for each worker."""

import os
from collections.abc import Callable

os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")

import sys  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # noqa: E402
from flwr.simulation import run_simulation  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))
from plain import trained  # noqa: E402
from work import Work, accuracy, timed  # noqa: E402


def contestant(work: Work, mark: Callable[[], None]) -> float:
    """FedAvg by Flower's own strategy."""
    torch.set_num_threads(1)
    reached: list[float] = []
    kept: dict[str, Any] = {}
    client_app, server_app = ClientApp(), ServerApp()

    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        if "data" not in kept:
            kept["data"] = work.arrays()
        x, y, _, _ = kept["data"]
        part = work.part(int(context.node_config["partition-id"]))
        model = work.model()
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        trained(model, x[part], y[part], work)
        content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": work.samples})}
        return Message(content=RecordDict(content), reply_to=message)

    class Marked(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            found = super().aggregate_train(server_round, replies)
            mark()
            return found

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = Marked(
            fraction_train=work.active / work.clients, fraction_evaluate=0.0, min_available_nodes=work.clients
        )
        found = strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(work.model().state_dict()),
            train_config=ConfigRecord({}),
            num_rounds=work.rounds,
        )
        model = work.model()
        model.load_state_dict(found.arrays.to_torch_state_dict())
        _, _, x_test, y_test = work.arrays()
        reached.append(accuracy(model, x_test, y_test))

    run_simulation(
        server_app,
        client_app,
        num_supernodes=work.clients,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    return reached[0]


if __name__ == "__main__":
    timed(contestant)
