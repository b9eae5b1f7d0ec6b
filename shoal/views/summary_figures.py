"""Figures of a run's summary: savings by filters and key caching, and losses.

Workers count the bytes of filters. Keys and gradients go to servers, weights to workers; "plain"
is what 8-byte keys and 4-byte values would have been, and the ratio is how many times fewer
bytes were sent. Key lists that servers know by a number are no filter: what they save is
subtracted before filters are credited.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from shoal.events import Evaluated, RunEvent
from shoal.views import format

ALL = "all"  # the name under which plain bytes, and those that went, are counted
HANDLES = "handles"
WAYS = ("to_servers", "to_workers")


def filters(filtered: Mapping[str, Sequence[int]], left: Sequence[float]) -> dict[str, Any] | None:
    """The filters' figures of a summary; None if there were no filters."""
    from shoal.filters import acts

    if ALL not in filtered:
        return None
    to_plain, to_sent, from_plain, from_sent = filtered[ALL]
    saved = min(filtered[HANDLES][3], to_plain) if HANDLES in filtered else 0
    by = {
        name: {"to_servers": list(counts[:2]), "to_workers": list(counts[2:])}
        for name, counts in sorted(filtered.items(), key=lambda one: acts(one[0]))
        if name not in (ALL, HANDLES)
    }
    workers = round(from_plain / from_sent, 3) if from_sent else None
    ratio, of_filters = (round(plain / to_sent, 3) if to_sent else None for plain in (to_plain, to_plain - saved))
    return {
        "bytes": by,  # into and out of each
        "plain": {"to_servers": to_plain, "to_workers": from_plain},
        "sent": {"to_servers": to_sent, "to_workers": from_sent},
        "by_number": {"to_servers": saved, "to_workers": 0},  # of plain: keys sent as a number
        "ratio": {"to_servers": ratio, "to_workers": workers},
        "ratio_of_filters": {"to_servers": of_filters, "to_workers": workers},
        "left": left[0],  # 2-norm of what filters held back at the end
        "lost": left[1],  # and of what was lost with workers
    }


def stages(found: Mapping[str, Any], way: str) -> dict[str, tuple[int, int]]:
    """Bytes into and out of each filter in one direction, of lists by number, and of all."""
    plain, sent = found["plain"].get(way, 0), found["sent"].get(way, 0)
    saved = found.get("by_number", {}).get(way, 0)  # runs of earlier versions have no such figure
    numbered = {"lists by number": (plain, plain - saved)} if saved else {}
    each = {name: (counts[way][0], counts[way][1]) for name, counts in found["bytes"].items() if counts[way][0]}
    return {**numbered, **each, "all together": (plain, sent)}


def spread(loss: float | None, events: Sequence[RunEvent]) -> dict[str, float]:
    """The distance of the workers' models when the saved one was evaluated; or empty."""
    told = [event.spread for event in events if isinstance(event, Evaluated) and event.test_loss == loss]
    return told[-1] if told else {}


def handles(filtered: Mapping[str, Sequence[int]]) -> dict[str, int] | None:
    if HANDLES not in filtered:
        return None
    return dict(zip(("hits", "misses", "forgotten", "bytes_saved"), filtered[HANDLES], strict=True))


def lost_updates(counts: Mapping[str, int]) -> dict[str, int] | None:
    """Lost updates by the canary, where writes are not locked (Hogwild)."""
    if "updates counted" not in counts:
        return None
    return {"counted": counts["updates counted"], "lost": counts["updates lost"]}


def lost(canary: object) -> str:
    """The finding of Hogwild's canary, in words; empty without one."""
    found = canary if isinstance(canary, dict) else {}
    counted, gone = found.get("counted"), found.get("lost")
    if not isinstance(counted, int) or not isinstance(gone, int) or counted < 1:
        return ""
    share = f"{gone / counted:.2%}" if gone / counted < 0.1 else f"{gone / counted:.0%}"
    how_many = f"{gone:,} ({share}) {'was' if gone == 1 else 'were'}" if gone else "none was"
    return f"of {counted:,} updates of one weight that all workers write to, {how_many} lost"


def models(spread: object) -> str:
    """The figures of models that each worker has; empty if there are none."""
    found = spread if isinstance(spread, dict) else {}
    best, worst, apart = (format.number(found.get(name)) for name in ("best", "worst", "distance"))
    if best is None or worst is None or apart is None:
        return ""
    rounds, pieces = format.number(found.get("rounds")), format.number(found.get("pieces"))
    after = "" if rounds is None else f" after {format.rounds(rounds)}"
    if not apart:
        return f"every worker has this model{after}"
    forever = "" if pieces is None else f"; they are in {pieces:,.0f} pieces, and never agree"
    return (
        f"this is the mean of all models, which no worker has: their own have test losses of {format.loss(best)} to "
        f"{format.loss(worst)}, and are {format.distance(apart)} from it{after}{forever}"
    )


def staleness(histogram: Sequence[int]) -> dict[str, Any]:
    """Staleness of pushes: how many others were counted between their pull and them."""
    counts = [int(count) for count in histogram]
    total = sum(counts)
    if not total:
        return {"mean": None, "p95": None, "max": None, "counts": []}
    return {
        "mean": round(sum(age * count for age, count in enumerate(counts)) / total, 3),
        "p95": next(age for age, below in enumerate(accumulate(counts)) if below >= 0.95 * total),
        "max": max(age for age, count in enumerate(counts) if count),
        "counts": counts,
    }


def line(summary: Mapping[str, Any]) -> str:
    """One line about filters, at the end of a run; "" if there were none."""
    found = summary.get("filters")
    if not found:
        return ""
    parts = []
    for way in WAYS:
        if found["ratio"][way]:
            plain, sent = stages(found, way)["all together"]
            _, numbered = stages(found, way).get("lists by number", (plain, plain))
            part = f"{format.size(sent)} {way.replace('_', ' ')} instead of {format.size(numbered)}"
            part += f" ({numbered / sent:.1f} times fewer)"
            if numbered < plain:
                part += f" and of {format.size(plain)} without lists by number ({plain / sent:.1f} times)"
            parts.append(part)
    lost = f"; lost with workers: {found['lost']:.3g}" if found["lost"] else ""
    left = f"; left for later: {found['left']:.3g}" if found["left"] else ""
    return f"{', '.join(parts)}{left}{lost}"
