"""Block-proximal: sparse logistic regression, block by block (Li et al., 2014)."""

from shoal.strategies.block_proximal.algorithm import BlockProximal as BlockProximal

PUBLIC = ("algorithm", "order")
