"""What can be simulated, and the module that does it: names only, so that a command line is ready at once (see ``kinds``)."""

MODULES = {
    "store": "clusters",
    "moves": "moving",
    "training": "training",
    "gossip": "gossiping",
    "peers": "peering",
}
FORMER = {"cluster": "store"}  # spellings of before: they are understood, and not named
WITH_PLANS = ("store", "moves", "training")  # their plans are printed, read and made shorter
