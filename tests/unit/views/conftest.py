"""The events of a made-up but realistic run.

Losses fall, workers join and leave, and the run is stopped.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from shoal.events import Evaluated, Gone, Joined, Progress, RunEvent, Started, Stopped, Voided

ROWS = 20_242


class Story:
    """Single events, and a whole run of them."""

    @staticmethod
    def started(workers: int = 4, servers: int = 2) -> Started:
        return Started(
            seconds=0.0,
            data="rcv1",
            model="logistic",
            strategy="bounded",
            workers=workers,
            servers=servers,
            seed=1,
            cores=2,
            rows=ROWS,
            test_rows=5_000,
            features=47_236,
            batch=128,
            slots=159,
        )

    @staticmethod
    def progress(seconds: float, passes: float, train_loss: float | None = 0.1312, workers: int = 4) -> Progress:
        examples = round(passes * ROWS)
        return Progress(
            seconds=seconds,
            passes=passes,
            steps=examples // 128,
            examples=examples,
            train_loss=train_loss,
            workers=workers,
        )

    @staticmethod
    def evaluated(
        number: int,
        seconds: float,
        passes: float,
        test_loss: float,
        best: bool = True,
        train_loss: float | None = None,
        metrics: dict[str, float | None] | None = None,
    ) -> Evaluated:
        return Evaluated(
            number=number,
            seconds=seconds,
            passes=passes,
            steps=round(passes * ROWS) // 128,
            examples=round(passes * ROWS),
            train_loss=train_loss,
            test_loss=test_loss,
            metrics={"accuracy": 0.9478, "auc": 0.9880} if metrics is None else metrics,
            workers=4,
            best=best,
        )

    @staticmethod
    def joined(seconds: float, name: str, role: str = "worker") -> Joined:
        return Joined(seconds=seconds, name=name, role=role)

    @staticmethod
    def gone(seconds: float, name: str, why: str = "killed", slots: int = 12) -> Gone:
        return Gone(seconds=seconds, name=name, role="worker", why=why, slots=slots)

    @staticmethod
    def run(
        seconds: float = 60.0, passes: float = 10.0, records: int = 240, evaluations: int = 11
    ) -> Iterator[RunEvent]:
        """A run of this many seconds.

        A worker is killed at a third of it, another joins at half of it, and one slot is void.
        """
        yield Story.started()
        told = 0
        best = math.inf
        for at in range(records + 1):
            share = at / records
            now, far = seconds * share, passes * share
            if share * (evaluations - 1) >= told:
                loss = 0.13 + 0.563 * math.exp(-1.1 * far) + 0.002 * max(0.0, far - 7)
                accuracy = 0.95 - 0.45 * math.exp(-1.3 * far)
                auc = None if told == 0 else 0.988 - 0.2 * math.exp(-1.5 * far)
                yield Story.evaluated(told, now, far, loss, loss < best, metrics={"accuracy": accuracy, "auc": auc})
                best = min(best, loss)
                told += 1
            if at == records // 3:
                yield Story.gone(now, "worker-3", "its process ended with signal 9")
            if at == records // 2:
                yield Story.joined(now, "worker-4")
            if at == records * 2 // 3:
                yield Voided(seconds=now, slot=(6, 17), why="the gradient is not finite")
            if at:
                short = records // 3 <= at < records // 2
                noise = 0.01 * math.sin(at * 12.9898)
                yield Story.progress(now, far, 0.11 + 0.5 * math.exp(-1.2 * far) + noise, 3 if short else 4)
        yield Stopped(seconds=seconds, why="10 passes are done")


@pytest.fixture
def story() -> type[Story]:
    return Story
