"""Draw kill.png from the events of a run in which a server was killed.

    shoal train clicks --servers 3 --copies 2 --workers 3 --epochs 1 --set data.rows=2000000 \
        --set evaluate.every=0.05 --out runs/kill      # and kill -9 server-1 half way
    python docs/pictures/kill.py runs/kill docs/pictures/kill.png
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt


def main(run: Path, picture: Path) -> None:
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    losses = [(e["seconds"], e["test_loss"]) for e in events if e["event"] == "evaluated" and e["steps"]]
    serving = [(e["seconds"], e["serves"]) for e in events if e["event"] == "shared"]
    (gone,) = (e["seconds"] for e in events if e["event"] == "gone")

    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.6), width_ratios=(3, 2))
    left.plot(*zip(*losses, strict=True), marker="o", markersize=4, color="#0060a8")
    left.axvline(gone, color="#b00020", linestyle="--", linewidth=1)
    left.annotate("kill -9 server-1", (gone, losses[0][1]), (5, -4), textcoords="offset points", color="#b00020")
    left.set(xlabel="seconds", ylabel="test loss", title="The loss keeps falling")
    times = [seconds - gone for seconds, _ in serving]
    for server, colour in (("server-0", "#0060a8"), ("server-1", "#b00020"), ("server-2", "#3a7d2c")):
        counts = [held.get(server, 0) for _, held in serving]
        right.step([*times, 3], [*counts, counts[-1]], where="post", label=server, color=colour)
    right.axvline(0, color="#b00020", linestyle="--", linewidth=1)
    right.set(xlabel="seconds after the kill", ylabel="segments served", xlim=(-1, 3), ylim=(-0.5, None))
    right.set_title("The others take over; it comes back")
    right.legend(loc="lower right", fontsize=8)
    for axes in (left, right):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(picture, dpi=110)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
