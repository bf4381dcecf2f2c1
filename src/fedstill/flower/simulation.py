"""Flower's simulation runtime as a transport: clients take their turns on virtual nodes, over Ray or a cluster.

Each message carries the client's state and download, each answer its next state and upload, so states live in the run's
own folder as with every other transport, and resuming works the same. Actors load the data themselves, once each.
`RAY_ADDRESS` points to a cluster; without it Ray uses this machine.
"""

import json
import os
import queue
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from fedstill.core import record
from fedstill.core.errors import Abstains, RunError, UsageError
from fedstill.core.method import Env, Reply
from fedstill.core.shelf import Shelf, Storage
from fedstill.core.turn import turn
from fedstill.experiment.config import Experiment, experiment
from fedstill.experiment.stage import Stage, stage
from fedstill.flower.flwr_env import prepare
from fedstill.transports.inline import describe
from fedstill.transports.registry import Opening, transports

POLL = 0.02


@cache
def _stage(text: str) -> tuple[Experiment, Stage]:
    plan = experiment(json.loads(text))
    return plan, stage(plan, Storage())


def take_turn(message: Any, context: Any) -> Any:
    """A virtual node's turn, in one of Ray's actors."""
    import torch
    from flwr.app import Message

    from fedstill.flower.content import packed, unpacked

    torch.set_num_threads(1)
    head, load = unpacked(message.content)
    job = json.loads(head)
    began = time.perf_counter()
    outcome: dict[str, Any]
    try:
        plan, ready = _stage(job["experiment"])
        state, down = record.loads(load or b"")
        env = ready.env.at(job["round"], job["client"])
        answer = record.dumps(turn(plan.method, env, ready.party(job["client"]), state, down))
        outcome = {"seconds": time.perf_counter() - began}
    except Abstains as why:
        answer, outcome = b"", {"abstains": str(why)}
    except Exception as error:
        answer, outcome = b"", {"error": describe(error), "traceback": traceback.format_exc()}
    return Message(packed(json.dumps(outcome).encode(), answer), reply_to=message)


class FlowerSimulation:
    """Runs turns on `nodes` virtual nodes of Flower; the same bits as `Inline`."""

    idle = False  # its own threads carry the messages

    def __init__(self, settings: Mapping[str, Any], states: Shelf, nodes: int) -> None:
        self.text = json.dumps(settings)
        self.states = states
        self.home = tempfile.TemporaryDirectory(prefix="fedstill-flwr-")
        prepare(Path(self.home.name))
        self.done = threading.Event()
        self.grids: queue.Queue[Any] = queue.Queue()
        self.thread = threading.Thread(target=self._run, args=(nodes,), daemon=True)
        self.thread.start()
        self.grid = self.grids.get()
        if isinstance(self.grid, Exception):
            raise RunError(f"Flower's simulation did not start: {describe(self.grid)}") from self.grid
        until = time.monotonic() + 120
        while len(list(self.grid.get_node_ids())) < nodes:
            if time.monotonic() > until or not self.thread.is_alive():
                raise RunError("Flower's simulation did not start its nodes")
            time.sleep(POLL)
        self.nodes = list(self.grid.get_node_ids())

    def exchange(self, env: Env, downs: Mapping[int, Any]) -> list[Reply[Any]]:
        """Give every client its turn on a virtual node; replies come in the order of `downs`."""
        from flwr.app import Message

        from fedstill.flower.content import packed, unpacked

        messages = []
        for place, (client, down) in enumerate(downs.items()):
            head = json.dumps({"experiment": self.text, "round": env.round, "client": client}).encode()
            load = record.dumps((self.states.get(client), down))
            messages.append(Message(packed(head, load), self.nodes[place % len(self.nodes)], "train"))
        waiting = dict(zip(self.grid.push_messages(messages), downs, strict=True))
        replies: dict[int, Reply[Any]] = {}
        new: dict[int, Any] = {}
        while waiting:
            if not self.thread.is_alive():
                raise RunError("Flower's simulation ended in the middle of a round")
            for message in self.grid.pull_messages(list(waiting)):
                client = waiting.pop(message.metadata.reply_to_message_id)
                if message.has_error():
                    replies[client] = Reply(client, env.sizes[client], None, error=str(message.error.reason))
                    continue
                words, answer = unpacked(message.content)
                outcome = json.loads(words)
                if "abstains" in outcome:
                    replies[client] = Reply(client, env.sizes[client], None, error=outcome["abstains"])
                    continue
                if "error" in outcome:
                    fault = RunError(f"client {client} failed in round {env.round + 1}: {outcome['error']}")
                    fault.add_note(outcome["traceback"])
                    raise fault
                state, upload = record.loads(answer or b"")
                if state is not None:
                    new[client] = state
                replies[client] = Reply(client, env.sizes[client], upload, seconds=outcome["seconds"])
            time.sleep(POLL)
        self.states = self.states.put(env.round, {k: new[k] for k in downs if k in new})
        return [replies[k] for k in downs]

    def close(self) -> None:
        """End the simulation runtime."""
        self.done.set()
        self.thread.join(60)
        self.home.cleanup()

    def _run(self, nodes: int) -> None:
        try:
            from flwr.clientapp import ClientApp
            from flwr.serverapp import ServerApp
            from flwr.simulation import run_simulation

            server, client = ServerApp(), ClientApp()
            client.train()(take_turn)

            def hand_over(grid: Any, context: Any) -> None:
                self.grids.put(grid)
                self.done.wait()

            server.main()(hand_over)
            here = {} if os.environ.get("RAY_ADDRESS") else {"num_cpus": os.cpu_count() or 1}
            config: Any = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": here}
            run_simulation(server, client, nodes, backend_config=config)
        except Exception as error:
            self.grids.put(error)


@transports.register("flower-simulation")
def open_simulation(opening: Opening) -> FlowerSimulation:
    """As many virtual nodes as there are workers."""
    if opening.objects:
        raise UsageError('transport = "flower-simulation": data and models must be names or paths, not objects')
    nodes = opening.active if opening.workers == "auto" else opening.count
    return FlowerSimulation(opening.experiment, opening.states, nodes)
