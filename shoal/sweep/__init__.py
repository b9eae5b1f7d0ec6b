"""Sweeps: a study of one question becomes runs, figures, pictures and findings.

``study`` (with ``grid``) reads the study, ``disk`` finds its existing runs, ``schedule``
(with ``child``) runs the others, ``results`` compares them. ``findings``, ``plots`` and
``report`` show the result, ``show`` the progress.
"""

from __future__ import annotations

PUBLIC = (
    "disk",
    "plots",
    "report",
    "results",
    "schedule",
    "show",
    "study",
)  # for other packages; the other modules are private
