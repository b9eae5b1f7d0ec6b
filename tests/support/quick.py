"""The timing of tests that wait for a death: silence is noticed in a fifth of the default.

Timeouts for a process to start, or for a disk, keep their defaults, as a busy machine is slow at
these. All other tests use the defaults, so that a busy machine fakes no death.
"""

from __future__ import annotations

from shoal.timing import DEFAULT, Timing, seconds_of

_AS_USUAL = ("patience", "gone", "leave_still", "snap_within", "join_within", "level_again", "drain")

QUICK = Timing(scale=0.2, **{name: seconds_of(DEFAULT)[name] for name in _AS_USUAL})
AS_SETTINGS = {"timing.scale": 0.2, **{f"timing.{name}": seconds_of(DEFAULT)[name] for name in _AS_USUAL}}
"""The same, as settings of a job."""
