"""Seven nodes without a server: gradient descent by hand and by shoal (S3-09).

    python examples/seven_nodes.py

The model is logistic regression. Every node has a hundred rows that nobody else sees, and a model
of its own. It talks to its neighbours only:

        1       5
       / \\     / \\          1. the gradient on its own rows, at its own weights
      0---2-3-4---6         2. its neighbours' weights
                            3. the weighted mean of these and its own
                            4. a step by the gradient of 1

The loss is that of the mean of the seven models, which no node has. They come near it but do not
reach it: steps of constant length pull each node towards its own rows again.
"""

import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

import shoal
from shoal.data.datasets import DataSource, load
from shoal.events import Evaluated

NODES, EACH, FEATURES = 7, 100, 10
LINKS = [(0, 1), (0, 2), (1, 2), (2, 3), (3, 4), (4, 5), (4, 6), (5, 6)]
ROUNDS, STEP, L2 = 200, 0.5, 1e-6
Doubles = npt.NDArray[np.float64]


def write_rows(path: Path) -> None:
    """Rows on both sides of a plane, some on the wrong one."""
    draw = np.random.default_rng(7)
    x = draw.normal(size=(NODES * EACH, FEATURES))
    y = np.sign(x @ draw.normal(size=FEATURES) + draw.normal(size=len(x)))
    for_each = zip(y, x, strict=True)
    lines = [f"{label:+.0f} " + " ".join(f"{n}:{v:.5f}" for n, v in enumerate(row, 1)) for label, row in for_each]
    path.write_text("\n".join(lines) + "\n")


def rows_of(path: Path) -> tuple[Doubles, Doubles]:
    """As shoal deals them out: the first hundred to node 0, the next to node 1, ..."""
    packed = load(DataSource(source=str(path), test=str(path)), seed=0).train
    batch = packed.slice(0, packed.rows)
    assert batch.values is not None
    labels = np.where(np.array(batch.labels) > 0, 1.0, -1.0)
    return np.array(batch.values, np.float64).reshape(packed.rows, FEATURES), labels


def metropolis() -> Doubles:
    """w_ij = 1 / (1 + the larger degree); the rest is w_ii. Rows and columns sum to 1."""
    degree = np.bincount(np.ravel(LINKS), minlength=NODES)
    mixing = np.zeros((NODES, NODES))
    for i, j in LINKS:
        mixing[i, j] = mixing[j, i] = 1 / (1 + max(degree[i], degree[j]))
    return mixing + np.diag(1 - mixing.sum(1))


def loss(x: Doubles, y: Doubles, w: Doubles) -> float:
    return float(np.logaddexp(0, -y * (x @ w)).mean())


def gradient(x: Doubles, y: Doubles, w: Doubles) -> Doubles:
    found: Doubles = -(x.T @ (y / (1 + np.exp(y * (x @ w))))) / len(y) + L2 * w
    return found


def by_hand(x: Doubles, y: Doubles) -> list[Doubles]:
    """The models of all nodes (a row each) after every round."""
    mixing, w = metropolis(), np.zeros((NODES, FEATURES))
    own = [slice(EACH * node, EACH * (node + 1)) for node in range(NODES)]
    found = [w]
    for _ in range(ROUNDS):
        gradients = np.array([gradient(x[rows], y[rows], w[node]) for node, rows in enumerate(own)])
        w = mixing @ w - STEP * gradients
        found.append(w)
    return found


def by_shoal(rows: Path, edges: Path) -> shoal.Run:
    """The same with seven workers; a round is an epoch. The mean is evaluated, on all rows."""
    edges.write_text("".join(f"{i} {j}\n" for i, j in LINKS))
    settings = {
        "strategy.topology": "file", "strategy.edges": str(edges), "data.batch": EACH, "data.test": str(rows),
        "model.bias": False, "update.rule": "sgd", "update.step": STEP, "update.l2": L2,
        "evaluate.every": 20.0, "launch.how": "threads",
    }  # fmt: skip
    return shoal.train(rows, strategy="gossip", workers=NODES, epochs=ROUNDS, settings=settings)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.svm"
        write_rows(rows)
        x, y = rows_of(rows)
        found = by_hand(x, y)
        run = by_shoal(rows, Path(folder) / "links.txt")
    print("        loss at the mean      distance from the mean")
    print("round   by hand  by shoal     by hand  by shoal")
    for event in run.events:
        if isinstance(event, Evaluated):
            w = found[round(event.passes)]
            apart = np.sqrt(((w - w.mean(0)) ** 2).sum(1).mean())
            ours = f"{event.test_loss:.6f}     {apart:.5f}  {event.spread['distance']:.5f}"
            print(f"{event.passes:5.0f}  {loss(x, y, w.mean(0)):.6f}  {ours}")
    ends = {"by hand": found[-1].mean(0), "by shoal": run.model.weights[:FEATURES].astype(np.float64)}
    for who, mean in ends.items():
        print(f"objective at the mean {who}: {loss(x, y, mean) + L2 / 2 * mean @ mean:.6f}")


if __name__ == "__main__":
    main()
