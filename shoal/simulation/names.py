"""What can be simulated, and the module that does it: names only, so that a command line is ready at once (see ``kinds``)."""

MODULES = {"cluster": "clusters", "moves": "moving", "gossip": "gossiping", "peers": "peering"}
WITH_PLANS = ("cluster", "moves")  # their plans are printed, read and made shorter
