"""Inspects runs and clusters from outside, without changing them: status, query, export."""
