"""Distributed gradient descent with a parameter server, by hand.

In each round the server's weights go to all clients; client r computes the sum of the gradients of
its own rows and pushes it; the server adds up what arrived and makes one step:

    w <- w - step * (g_1 + ... + g_m)

This is a sum of sums, so m clients do exactly what one with all the rows does.
"""

from __future__ import annotations

import copy
import tempfile
import threading
import zlib
from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import shoal
from mnist_data import images

Measure = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # of outputs and labels


class Server:
    """Keeps the weights; takes a step when all clients have pushed, one slot each."""

    def __init__(self, cluster: shoal.Cluster, weights: np.ndarray, clients: int, step: float) -> None:
        self.kv = cluster.client()
        with tempfile.NamedTemporaryFile() as file:
            weights.tofile(file.name)
            first = shoal.Given(file.name, zlib.crc32(weights))
            apply = shoal.Step(slots=clients, combine="sum")
            spec = shoal.Dense(rows=len(weights), update=shoal.SGD(step), initial=first, apply=apply, max_delay=0)
            self.kv.create("w", spec)

    def weights(self) -> np.ndarray:
        return self.kv.pull("w", slice(None)).result()


class Client(threading.Thread):
    """Has rows of its own, which nobody else sees: pull, compute, push."""

    def __init__(self, cluster: shoal.Cluster, model: nn.Module, criterion: Measure, rows: list[torch.Tensor]) -> None:
        super().__init__()
        self.kv, self.model, self.criterion, self.rows = cluster.client(), copy.deepcopy(model), criterion, rows
        self.slots: list[int] = []  # one for each round
        self.losses: list[float] = []

    def run(self) -> None:
        weights = self.kv.pull("w", slice(None)).result()
        for slot in self.slots:
            vector_to_parameters(torch.tensor(weights, device=self.rows[0].device), self.model.parameters())
            loss = self.criterion(self.model(self.rows[0]), self.rows[1])
            gradient = parameters_to_vector(torch.autograd.grad(loss, list(self.model.parameters()))).cpu()
            weights = self.kv.push_pull("w", slice(None), gradient, slot=(0, slot)).result()
            self.losses.append(loss.item())


def main(
    model: nn.Module,
    criterion: Measure,
    metric: Measure,
    device: str = "cpu",
    clients: int = 5,
    rounds: int = 30,
    step: float = 1e-5,
    rows: int | None = None,
) -> list[float]:
    """Train ``model``, print the metric on other rows, and return the loss of every round."""
    train, test = ([one.to(device) for one in part.tensors] for part in images(rows))
    model.to(device)
    with shoal.local(servers=2) as cluster:
        server = Server(cluster, parameters_to_vector(model.parameters()).detach().cpu().numpy(), clients, step)
        crew = [Client(cluster, model, criterion, [one[r::clients] for one in train]) for r in range(clients)]
        for rank, client in enumerate(crew):
            client.slots = [number * clients + rank for number in range(rounds)]
            client.start()
        for client in crew:
            client.join()
        vector_to_parameters(torch.tensor(server.weights(), device=device), model.parameters())
    losses = [sum(parts) for parts in zip(*(client.losses for client in crew), strict=True)]
    with torch.no_grad():
        found = metric(model(test[0]), test[1])
    print(f"{clients} clients, {rounds} rounds: loss {losses[0]:,.0f} to {losses[-1]:,.0f}, metric {found:.4f}")
    return losses


if __name__ == "__main__":
    main(
        model=nn.Sequential(nn.Flatten(), nn.Linear(784, 10)),
        criterion=nn.CrossEntropyLoss(reduction="sum"),
        metric=lambda scores, labels: (scores.argmax(1) == labels).float().mean(),
        device="cuda" if torch.cuda.is_available() else "cpu",
    )
