"""Averaging and all-reduce: ranks learn apart and take means, or add up gradients."""
