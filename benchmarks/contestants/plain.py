"""The loop that one would write first: no federation package at all."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from work import Work, accuracy, timed


def trained(model: nn.Module, x: Tensor, y: Tensor, work: Work) -> nn.Module:
    """E epochs of SGD."""
    optimizer = torch.optim.SGD(model.parameters(), lr=work.lr)
    for _ in range(work.epochs):
        for index in torch.randperm(len(x)).split(work.batch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[index]), y[index]).backward()
            optimizer.step()
    return model


def fedavg(work: Work, mark: Callable[[], None]) -> float:
    """FedAvg, client by client."""
    x, y, x_test, y_test = work.arrays()
    server = work.model()
    for t in range(work.rounds):
        states = []
        for client in work.active_in(t):
            part = work.part(client)
            states.append(trained(copy.deepcopy(server), x[part], y[part], work).state_dict())
        server.load_state_dict({n: sum(s[n] for s in states) / len(states) for n in states[0]})  # type: ignore[misc]
        mark()
    return accuracy(server, x_test, y_test)


def fedmd(work: Work, mark: Callable[[], None]) -> float:
    """FedMD: a network for each client, a consensus of logits on the public samples; their mean accuracy."""
    from models import networks

    x, y, x_test, y_test = work.arrays()
    public, labels = x_test[: work.public], y_test[: work.public]
    models = networks(work.clients)
    optimizers = [torch.optim.Adam(model.parameters(), lr=work.lr) for model in models]
    consensus: Tensor | None = None
    for _ in range(work.rounds):
        spoken = []
        for client, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            model.train()
            for index in torch.randperm(len(public)).split(work.batch):
                optimizer.zero_grad()
                said = model(public[index])
                if consensus is None:
                    nn.functional.cross_entropy(said, labels[index]).backward()
                else:
                    (said - consensus[index]).abs().mean().backward()
                optimizer.step()
            part = work.part(client)
            for index in torch.randperm(work.samples).split(work.batch):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x[part][index]), y[part][index]).backward()
                optimizer.step()
            model.eval()
            with torch.no_grad():
                spoken.append(torch.cat([model(part) for part in public.split(512)]))
        consensus = torch.stack(spoken).mean(0)
        mark()
    return sum(accuracy(m, x_test[work.public :], y_test[work.public :]) for m in models) / len(models)


if __name__ == "__main__":
    timed(lambda work, mark: (fedmd if work.public else fedavg)(work, mark))
