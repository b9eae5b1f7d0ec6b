"""Sweeps: a study of one question becomes runs, figures, pictures and findings.

``study`` (with ``grid``) reads the study, ``disk`` finds its existing runs, ``schedule``
(with ``child``) runs the others, ``figures`` compares them. ``findings``, ``pictures`` and
``report`` show the result, ``show`` the progress.
"""

from __future__ import annotations

PUBLIC = (
    "disk",
    "figures",
    "pictures",
    "report",
    "schedule",
    "show",
    "study",
)  # for other packages; the other modules are private
