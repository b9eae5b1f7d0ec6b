"""What can be simulated, and the module that does it: names only, so that a command line is ready at once (see ``kinds``)."""

MODULES = {"cluster": "clusters", "gossip": "gossiping", "peers": "peering"}
