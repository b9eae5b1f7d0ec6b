"""A small network on MNIST: mnist_plain.py is plain PyTorch, mnist_loop.py several workers."""

import argparse

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from mnist_data import images

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--rows", type=int, help="train on so many")
given = parser.parse_args()
torch.manual_seed(0)
torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 8, 5, stride=2)
        self.second = nn.Conv2d(8, 16, 5, stride=2)
        self.third = nn.Linear(256, 64)
        self.fourth = nn.Linear(64, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found = functional.relu(self.second(functional.relu(self.first(images))))
        return self.fourth(functional.relu(self.third(found.flatten(1))))


data, test = images(given.rows)
model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
loader = DataLoader(data, batch_size=64, shuffle=True)

for epoch in range(given.epochs):
    total = 0.0
    for inputs, labels in loader:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"epoch {epoch + 1}: loss {total / len(loader):.4f} over {len(loader)} steps", flush=True)

with torch.no_grad():
    right = (model(test.tensors[0]).argmax(1) == test.tensors[1]).float().mean()
print(f"accuracy on {len(test):,} other images: {right:.4f}")
