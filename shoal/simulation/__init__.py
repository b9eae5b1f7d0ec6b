"""Runs whole clusters in one thread, on virtual time, with faults that are drawn from a seed.

The nodes are the classes that ship. Each scenario has the same parts: a plan (plain data, drawn from
a seed), what drives the nodes, a checker that reads the promises off what happened, mutants that the
checker must catch, and a ``Scenario`` that puts them together.

scenarios    what a scenario is, what a verdict says, and how many seeds are run
world, disk  nodes, network, clocks and journals on virtual time; a disk that forgets
cluster      servers and coordinators over all their lives
faults       the plan of a cluster and its faults; ``nemesis`` carries faults out
store, moves, training, gossip, peers    the scenarios
shrink       reduces a plan that fails to the shortest that fails alike
"""

SCENARIOS = {  # the module and the attribute that hold it; names only, so that a command line is ready at once
    "store": ("store_scenario", "STORE"),
    "moves": ("store_scenario", "MOVES"),
    "training": ("training_scenario", "TRAINING"),
    "gossip": ("gossip_scenario", "GOSSIP"),
    "peers": ("peers_scenario", "PEERS"),
}
FORMER = {"cluster": "store"}  # a name of before that is still understood
WITH_PLANS = ("store", "moves", "training")  # their plans can be printed, read and shrunk
