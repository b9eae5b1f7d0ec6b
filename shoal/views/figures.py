"""Figures of a run's summary: savings by filters and key caching, and losses.

Workers count the bytes of filters. Keys and gradients go to servers, weights to workers; "plain"
is what 8-byte keys and 4-byte values would have been, and the ratio is how many times fewer
bytes were sent. Key lists that servers know by a number are no filter: what they save is
subtracted before filters are credited.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shoal.events import Evaluated, RunEvent
from shoal.filters import acts
from shoal.views import charts, format
from shoal.views.axes import pictures
from shoal.views.page import PictureSection, Section, TableSection
from shoal.views.run_record import RunRecord

ALL = "all"  # the name under which plain bytes, and those that went, are counted
HANDLES = "handles"
_WAYS = ("to servers", "to workers")


def filters(filtered: Mapping[str, Sequence[int]], left: Sequence[float]) -> dict[str, Any] | None:
    """The filters' figures of a summary; None if there were no filters."""
    if ALL not in filtered:
        return None
    to_plain, to_sent, from_plain, from_sent = filtered[ALL]
    saved = min(filtered[HANDLES][3], to_plain) if HANDLES in filtered else 0
    by = {
        name: {"to_servers": list(counts[:2]), "to_workers": list(counts[2:])}
        for name, counts in sorted(filtered.items(), key=lambda one: acts(one[0]))
        if name not in (ALL, HANDLES)
    }
    return {
        "bytes": by,  # into and out of each
        "plain": {"to_servers": to_plain, "to_workers": from_plain},
        "sent": {"to_servers": to_sent, "to_workers": from_sent},
        "by_number": {"to_servers": saved, "to_workers": 0},  # of plain: keys sent as a number
        "ratio": {"to_servers": _ratio(to_plain, to_sent), "to_workers": _ratio(from_plain, from_sent)},
        "ratio_of_filters": {
            "to_servers": _ratio(to_plain - saved, to_sent),
            "to_workers": _ratio(from_plain, from_sent),
        },
        "left": left[0],  # 2-norm of what filters held back at the end
        "lost": left[1],  # and of what was lost with workers
    }


def spread(loss: float | None, events: Sequence[RunEvent]) -> dict[str, float]:
    """The distance of the workers' models when the saved one was evaluated; or empty."""
    told = [event.spread for event in events if isinstance(event, Evaluated) and event.test_loss == loss]
    return told[-1] if told else {}


def handles(filtered: Mapping[str, Sequence[int]]) -> dict[str, int] | None:
    """The savings by key lists that servers know by a number."""
    if HANDLES not in filtered:
        return None
    return dict(zip(("hits", "misses", "forgotten", "bytes_saved"), filtered[HANDLES], strict=True))


def known_keys(summary: Mapping[str, Any]) -> str:
    """The share of keys sent as a number, for a table."""
    found = summary.get("handles")
    if not found or not found["hits"]:
        return "-"
    return f"{found['bytes_saved'] / 1e6:,.2f} MB ({found['hits'] / (found['hits'] + found['misses']):.0%} of lists)"


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
    part = f"{gone / counted:.2%}" if gone / counted < 0.1 else f"{gone / counted:.0%}"
    how_many = f"{gone:,} ({part})" if gone else "none"
    return (
        f"of {counted:,} updates of one cell that everybody writes to, {how_many} {'was' if gone < 2 else 'were'} lost"
    )


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
    counts = np.asarray(histogram, np.int64)
    total = int(counts.sum())
    if not total:
        return {"mean": None, "p95": None, "max": None, "counts": []}
    ages = np.arange(len(counts))
    return {
        "mean": round(float((ages * counts).sum() / total), 3),
        "p95": int(np.searchsorted(np.cumsum(counts), 0.95 * total)),
        "max": int(ages[counts > 0].max()),
        "counts": counts.tolist(),
    }


def line(summary: Mapping[str, Any]) -> str:
    """One line about filters, at the end of a run; "" if there were none."""
    found = summary.get("filters")
    if not found:
        return ""
    numbered = found.get("by_number", {})  # runs of earlier versions have no such figure
    parts = []
    for way, said in (("to_servers", _WAYS[0]), ("to_workers", _WAYS[1])):
        if not found["ratio"][way]:
            continue
        saved, plain, sent = numbered.get(way, 0), found["plain"][way], found["sent"][way]
        part = f"{format.size(sent)} {said} instead of {format.size(plain - saved)} ({(plain - saved) / sent:.1f} times fewer)"
        if saved:
            part += f" and of {format.size(plain)} without lists by number ({plain / sent:.1f} times)"
        parts.append(part)
    lost = f"; lost with workers: {found['lost']:.3g}" if found["lost"] else ""
    left = f"; left for later: {found['left']:.3g}" if found["left"] else ""
    return f"filters: {', '.join(parts)}{left}{lost}"


def section(runs: Sequence[RunRecord]) -> Section | None:
    """The section on bytes into and out of each filter."""
    told = [(one, found) for one in runs if isinstance(found := one.summary.get("filters"), dict) and found.get("sent")]
    if not told:
        return None
    words, rows = [], []
    for one, found in told:
        name = [one.name] if len(runs) > 1 else []
        said = line(one.summary).removeprefix("filters: ")
        words.append(f"{one.name}: {said}." if len(runs) > 1 else f"{said[:1].upper()}{said[1:]}.")
        if saved := found.get("by_number", {}).get("to_servers", 0):
            plain = found["plain"]["to_servers"]
            rows.append([*name, "lists by number", *_cells([plain, plain - saved]), "-", "-"])
        for filter_name, ways in found["bytes"].items():
            rows.append([*name, filter_name, *_cells(ways["to_servers"]), *_cells(ways["to_workers"])])
        plain, sent = found["plain"], found["sent"]
        rows.append([*name, "all together", *(cell for way in plain for cell in _cells([plain[way], sent[way]]))])
    heads = ["filter", *(f"{way}, {what}" for way in _WAYS for what in ("in", "out"))]
    caption = (
        "Bytes of keys and values into and out of each filter. All together: in are 8-byte keys and 4-byte values."
    )
    drawn: list[PictureSection] = pictures(
        "filters",
        lambda: charts.filtered([(one.name, found) for one, found in told]),
        "Megabytes into (pale) and out of each filter, and of all together, where in are 8-byte keys and 4-byte values.",
    )
    return Section(
        "Filters", words, drawn, [TableSection([*(["run"] if len(runs) > 1 else []), *heads], rows, caption)]
    )


def _cells(pair: Sequence[int]) -> list[str]:
    return [f"{size / 1e6:,.2f} MB" if size else "-" for size in pair]


def _ratio(plain: int, sent: int) -> float | None:
    return round(plain / sent, 3) if sent else None
