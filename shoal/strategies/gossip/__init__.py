"""Gossip: every worker has a model and averages with its neighbours (Lian et al., 2017)."""

from shoal.strategies.gossip.settings import Gossip as Gossip
