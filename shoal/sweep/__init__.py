"""Many runs that answer one question: a study becomes runs, runs become figures, pictures and words.

``study`` (with ``grid``) reads what is asked, ``disk`` knows which of its runs are there, ``schedule`` (with ``child``) runs the
others, ``figures`` holds them against each other. ``table``, ``pictures`` and ``sections`` show it, ``command`` is the door.
"""

from __future__ import annotations
