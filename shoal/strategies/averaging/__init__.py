"""Averaging and all-reduce: ranks learn apart and take means, or add up gradients."""

from shoal.strategies.averaging.settings import AllReduce as AllReduce
from shoal.strategies.averaging.settings import Averaging as Averaging
