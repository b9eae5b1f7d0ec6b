"""Looks at runs and clusters from outside: nothing changes by being looked at."""
