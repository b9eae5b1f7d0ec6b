"""Parses the expiry of keys, and reads the wall clock.

    2026-12-31              to the end of that day
    2026-12-31T18:00        up to that moment; seconds may follow
    30d, 12h                so long from now

All times are UTC, in whole seconds since 1970; 0 is never. Only expiry depends on the wall clock,
because operators think in calendar days.
"""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

from shoal import limits
from shoal.errors import Invalid

NEVER = "never"
_LONG = {"d": 86_400, "h": 3_600}


def now() -> int:
    return int(time.time())


def moment(text: str, at: int | None = None) -> int:
    """The time that a text means; relative ones count from ``at``, and need it."""
    if text == NEVER:
        return 0
    if at is not None and (long := re.fullmatch(r"(\d{1,5})([dh])", text, re.ASCII)) is not None:
        found = at + int(long[1]) * _LONG[long[2]]
    else:
        found = _calendar(text)
    if not 0 < found <= limits.UNTIL:
        raise _unclear(text)
    return found


def written(until: int) -> str:
    return datetime.fromtimestamp(until, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if until else NEVER


def _calendar(text: str) -> int:
    for form in ("%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"):
        try:
            found = datetime.strptime(text.removesuffix("Z"), form).replace(tzinfo=UTC)
        except ValueError:
            continue
        return int(found.timestamp()) + (_LONG["d"] if form == "%Y-%m-%d" else 0)
    raise _unclear(text)


def _unclear(text: str) -> Invalid:
    return Invalid(f"{text[:80]!r} is no expiry: give 2026-12-31, 2026-12-31T18:00 (UTC), 30d, 12h or {NEVER}")
