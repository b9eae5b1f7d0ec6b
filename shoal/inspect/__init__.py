"""Looks at runs and clusters from outside; drains servers, and uploads what was exported."""

PUBLIC = ("drain", "evaluate", "export", "query", "status", "upload")
