"""Hogwild: one model in shared memory, written without locks (Niu et al., 2011)."""
