"""Who may take part from other machines: keys, encryption, roles, and how many may call."""
