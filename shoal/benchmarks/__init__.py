"""What shoal costs, measured beside rivals that do less.

    from shoal.benchmarks.store import FULL, measure, table
    results = measure(FULL, print)

A rival is measured in the same run and in turn with us, never before or after: a machine is not the same machine a
minute later. Nothing here is used by the rest of the house, and everything it starts ends with it.
"""
