"""Who is here, and who holds what.

    placement    a table's keys cut into segments, and each segment's servers chosen on a ring

Only the coordinator decides; everyone else is told. Nothing here sends, sleeps, reads the time or draws at random, so
that every node that is given the same facts comes to the same answer.
"""

from __future__ import annotations

from shoal.cluster.placement import move, place, segments_of

__all__ = ["move", "place", "segments_of"]
