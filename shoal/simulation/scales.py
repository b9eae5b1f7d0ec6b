"""Of how long a simulated cluster's nodes wait: no rule may rest on the ratio between these and all the rest being the usual one."""

from __future__ import annotations

from random import Random


def draw_scale(seed: int) -> float:
    """Of the timing, by a chance of its own: three seeds in four go by the defaults."""
    random = Random(f"{seed}/timing")
    return random.choice([0.2, 0.5, 2.0, 3.0]) if random.random() < 0.25 else 1.0
