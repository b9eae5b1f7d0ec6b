"""Parallel training strategies: a folder each, with settings, algorithm, worker and run."""

PUBLIC = (
    "averaging",
    "block_proximal",
    "gossip",
    "hogwild",
    "parameter_server",
    "peers",
)  # for other packages; the other modules are private
