"""Many runs that answer one question: a study becomes runs, figures, pictures and words.

``study`` (with ``grid``) reads the question, ``disk`` finds the runs that are there, ``schedule``
(with ``child``) runs the others, ``figures`` compares them. ``findings``, ``table``, ``pictures``
and ``sections`` show the result, ``show`` the progress.
"""

from __future__ import annotations

PUBLIC = (
    "disk",
    "figures",
    "pictures",
    "schedule",
    "sections",
    "show",
    "study",
    "table",
)  # for other packages; the other modules are private
