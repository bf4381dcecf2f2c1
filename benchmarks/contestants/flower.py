"""Flower's simulation: one virtual node for each client, on Ray, a core for each worker."""

import os
from collections.abc import Callable

os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("RAY_worker_niceness", "0")  # its workers would give way to everything else on the machine

import sys
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

sys.path.insert(0, str(Path(__file__).parent))
from plain import trained
from work import Work, accuracy, timed


def contestant(work: Work, mark: Callable[[], None]) -> float:
    """FedAvg by Flower's own strategy."""
    torch.set_num_threads(1)
    reached: list[float] = []
    client_app, server_app = ClientApp(), ServerApp()

    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        x, y, _, _ = work.arrays()
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
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": os.cpu_count() or 1, "include_dashboard": False},
        },
    )
    return reached[0]


if __name__ == "__main__":
    timed(contestant)
