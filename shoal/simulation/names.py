"""What can be simulated, and the module that does it: names only, so that a command line is ready at once (see ``kinds``)."""

MODULES = {
    "store": "store_scenario",
    "moves": "moves_scenario",
    "training": "training_scenario",
    "gossip": "gossip_scenario",
    "peers": "peers_scenario",
}
FORMER = {"cluster": "store"}  # spellings of before: they are understood, and not named
WITH_PLANS = ("store", "moves", "training")  # their plans are printed, read and made shorter
