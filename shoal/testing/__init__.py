"""What every strategy must pass, for those that are here and those that somebody writes.

    conformance    the suite: checks whose names are sentences, over one strategy in one place
    watch          a run, watched to its end, with things done to it in between

No test framework is needed: a check raises AssertionError, or returns.
"""
