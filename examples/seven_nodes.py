"""Seven nodes without a server: decentralized gradient descent on logistic regression, by hand and by shoal (S3-09).

    python examples/seven_nodes.py

Every node has a hundred rows that nobody else sees, and a model of its own. It looks at its neighbours' models only:

        1       5
       / \\     / \\          1. the gradient on its own rows, at its own weights
      0---2-3-4---6         2. its neighbours' weights
                            3. the weighted mean of these and its own
                            4. a step by the gradient of 1

The objective is that of the mean of the seven models, which no node has. In the end they hardly differ from it.
"""

import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

import shoal
from shoal.data.datasets import Source, load
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
    lines = (
        f"{label:+.0f} " + " ".join(f"{n}:{v:.5f}" for n, v in enumerate(row, 1))
        for label, row in zip(y, x, strict=True)
    )
    path.write_text("\n".join(lines) + "\n")


def metropolis() -> Doubles:
    """w_ij = 1 / (1 + the larger number of neighbours); what is left is one's own. Rows and columns sum to 1."""
    degree = np.bincount(np.ravel(LINKS), minlength=NODES)
    mixing = np.zeros((NODES, NODES))
    for i, j in LINKS:
        mixing[i, j] = mixing[j, i] = 1 / (1 + max(degree[i], degree[j]))
    return mixing + np.diag(1 - mixing.sum(1))


def objective(x: Doubles, y: Doubles, w: Doubles) -> float:
    return float(np.logaddexp(0, -y * (x @ w)).mean() + L2 / 2 * w @ w)


def by_hand(x: Doubles, y: Doubles) -> tuple[Doubles, list[float]]:
    """The models of all nodes at the end, and the objective of their mean after each round."""
    mixing, w = metropolis(), np.zeros((NODES, x.shape[1]))
    parts = [slice(EACH * node, EACH * (node + 1)) for node in range(NODES)]
    found = [objective(x, y, w.mean(0))]
    for _ in range(ROUNDS):
        wrong = [1 / (1 + np.exp(y[own] * (x[own] @ w[node]))) for node, own in enumerate(parts)]
        gradients = np.array(
            [-(x[own].T @ (y[own] * wrong[node])) / EACH + L2 * w[node] for node, own in enumerate(parts)]
        )
        w = mixing @ w - STEP * gradients
        found.append(objective(x, y, w.mean(0)))
    return w, found


def by_shoal(rows: Path, edges: Path) -> list[Evaluated]:
    """The same: seven workers that talk to their neighbours, a round is a pass. It is judged by the mean, on all rows."""
    edges.write_text("".join(f"{i} {j}\n" for i, j in LINKS))
    settings = {
        "data.test": str(rows),
        "data.batch": EACH,
        "model.bias": False,
        "evaluate.every": 20.0,
        "launch.how": "threads",
    }
    settings |= {"strategy.topology": "file", "strategy.edges": str(edges)}
    settings |= {"update.rule": "sgd", "update.step": STEP, "update.l2": L2}
    run = shoal.train(rows, strategy="gossip", workers=NODES, epochs=ROUNDS, settings=settings)
    return [event for event in run.events if isinstance(event, Evaluated)]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / "rows.svm"
        write_rows(rows)
        packed = load(Source(source=str(rows), test=str(rows)), seed=0).train  # the order that shoal deals them out in
        batch = packed.slice(0, packed.rows)
        assert batch.values is not None
        x = np.array(batch.values, np.float64).reshape(packed.rows, FEATURES)
        w, found = by_hand(x, np.where(np.array(batch.labels) > 0, 1.0, -1.0))
        judged = by_shoal(rows, Path(folder) / "links.txt")
    print("round  objective at the mean, by hand   loss at the mean, by shoal   farthest from the mean")
    for event in judged:
        at = round(event.passes)
        print(
            f"{at:5}  {found[at]:.6f}                         {event.test_loss:.6f}                     {event.spread['distance']:.1e}"
        )
    print(f"by hand the models end {np.abs(w - w.mean(0)).max():.1e} from their mean, at most")


if __name__ == "__main__":
    main()
