"""What every strategy must pass, for those that are here and those that somebody writes.

    conformance    the suite: checks whose names are sentences, over one strategy in one place
    watch          a run, watched to its end, with things done to it in between
    serial         the run that one worker would make with nothing in its way, to hold others against
    den            where programs under test live, and how to see what they leave behind
    hosts, ether   hosts of their own on this machine, and the wire between them, which can be cut
    site           a cluster over such hosts, in the counting model
    disks          a disk of its own, which can stall or fail

No test framework is needed: a check raises AssertionError, or returns.
"""
