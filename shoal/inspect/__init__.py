"""Inspects runs and clusters from outside, without changing them: status, query, export."""

PUBLIC = (
    "drain",
    "evaluate",
    "export",
    "query",
    "status",
    "upload",
)  # for other packages; the other modules are private
