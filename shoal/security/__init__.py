"""Security between machines: keys, encryption, roles, connection limits."""

PUBLIC = (
    "address",
    "authorize",
    "connections",
    "curve",
    "expiry",
    "keyring",
    "safety",
)  # for other packages; the other modules are private
