"""Parallel SGD by hand, over MPI: each rank learns alone; the weights are averaged once.

    mpirun -n 4 python examples/psgd_by_hand.py
    mpirun -n 4 python examples/psgd_by_hand.py --own-start

Each rank learns from its share of the images. ``--own-start`` is the classic mistake: the mean of
networks that began apart knows nothing. As root: ``mpirun --allow-run-as-root``; more ranks than
cores: ``--oversubscribe``. `shoal train mnist --model sheet --strategy averaging --set
strategy.every=end` is the same, with checkpoints, restarts and figures.
"""

import argparse

import torch
from mpi4py import MPI
from torch.nn import functional

from mnist_data import images
from shoal.models.zoo import sheet

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--rows", type=int, help="train on so many")
parser.add_argument("--own-start", action="store_true", help="every rank begins with weights of its own")
given = parser.parse_args()
world = MPI.COMM_WORLD
torch.set_num_threads(1)

torch.manual_seed(world.rank if given.own_start else 0)  # how a network begins
model = sheet((28, 28), 10)
torch.manual_seed(world.rank)  # the order of the images, and dropout
(inputs, labels), test = (part.tensors for part in images(given.rows))
inputs, labels = inputs[world.rank :: world.size, 0], labels[world.rank :: world.size]
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def accuracy() -> float:
    model.eval()
    with torch.no_grad():
        return float((model(test[0][:, 0]).argmax(1) == test[1]).float().mean())


began = MPI.Wtime()
for _ in range(given.epochs):
    for rows in torch.randperm(len(inputs)).split(64):
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs[rows]), labels[rows]).backward()
        optimizer.step()
alone = accuracy() if world.rank == 0 else 0.0

with torch.no_grad():
    for _, weights in model.named_parameters():
        world.Allreduce(MPI.IN_PLACE, weights.numpy())  # the sum over all ranks, in place
        weights /= world.size

if world.rank == 0:
    print(f"{world.size} ranks, {given.epochs} epochs in {MPI.Wtime() - began:.1f} s")
    print(f"accuracy of rank 0 alone: {alone:.4f}; of the mean: {accuracy():.4f}")
