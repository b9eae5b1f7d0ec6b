"""Runs whole clusters in one thread, on virtual time, with faults drawn from a seed.

The nodes are the classes that ship. Every scenario has the same parts: a plan (plain data, drawn
from a seed), a driver, a checker that tests the promises on the history, and a ``Scenario`` that
puts them together. The mutants that a checker must catch are in ``tests/support/mutants``.

scenarios    defines a scenario and its verdict, and runs many seeds
world, disk  hold nodes, network, clocks and journals on virtual time; a disk that loses writes
cluster      keeps servers and coordinators over all their lives
faults       is the plan of a cluster and its faults, and the Nemesis that carries them out
*_scenario   are the scenarios (moves: in ``store_scenario``); the files beside them are parts
shrink       reduces a plan that fails to the shortest one that fails by the same rule
"""

PUBLIC = ("faults", "reference", "scenarios", "shrink")

# by name: module and attribute. No imports here, so that the command line starts at once.
SCENARIOS = {
    "store": ("store_scenario", "STORE"),
    "moves": ("store_scenario", "MOVES"),
    "training": ("training_scenario", "TRAINING"),
    "gossip": ("gossip_scenario", "GOSSIP"),
    "peers": ("peers_scenario", "PEERS"),
}
FORMER = {"cluster": "store"}  # old names that are still accepted
