"""Hogwild by hand, with torch.multiprocessing: one network in shared memory, no locks.

    python examples/hogwild_by_hand.py --workers 2

The workers share an epoch's batches: however many they are, every image is seen once. `shoal train
mnist --model sheet --strategy hogwild` is the same, with checkpoints, restarts and figures.
"""

import argparse
import time

import torch
from torch import multiprocessing, nn
from torch.nn import functional

from mnist_data import images
from shoal.models.zoo import sheet


def work(rank: int, workers: int, model: nn.Module, epochs: int, inputs: torch.Tensor, labels: torch.Tensor) -> None:
    """The weights are everybody's; gradients are one's own."""
    torch.set_num_threads(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(epochs):
        torch.manual_seed(epoch)
        batches = torch.randperm(len(inputs)).split(64)  # the same for all ranks
        for rows in batches[rank::workers]:
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs[rows]), labels[rows]).backward()
            optimizer.step()  # w -= step * gradient in shared memory, without a lock


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rows", type=int, help="train on so many")
    given = parser.parse_args()
    (inputs, labels), test = (part.tensors for part in images(given.rows))
    torch.manual_seed(0)
    model = sheet((28, 28), 10)
    model.share_memory()  # the images are sent to the workers as shared memory, too
    began = time.perf_counter()
    multiprocessing.spawn(work, (given.workers, model, given.epochs, inputs[:, 0], labels), nprocs=given.workers)
    took = time.perf_counter() - began
    model.eval()
    with torch.no_grad():
        right = (model(test[0][:, 0]).argmax(1) == test[1]).float().mean()
    print(f"{given.workers} workers, {given.epochs} epochs in {took:.1f} s: accuracy {right:.4f}")


if __name__ == "__main__":
    main()
