"""Who may take part from other machines: keys, encryption, roles, and how many may call."""

PUBLIC = (
    "address",
    "authorize",
    "connection_limit",
    "curve",
    "descriptors",
    "expiry",
    "keyring",
    "reconnect",
    "safety",
)  # for other packages; the other modules are private
