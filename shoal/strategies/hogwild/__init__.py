"""Hogwild: one model in shared memory, written without locks (Niu et al., 2011)."""

from shoal.strategies.hogwild.settings import Hogwild as Hogwild
