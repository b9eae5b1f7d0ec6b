"""Gossip: every worker has a model and averages with its neighbours (Lian et al., 2017)."""
