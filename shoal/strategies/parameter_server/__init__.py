"""Parameter server: pull, gradient, push (Li et al., OSDI 2014)."""

from shoal.strategies.parameter_server.algorithm import Async as Async
from shoal.strategies.parameter_server.algorithm import Bounded as Bounded
from shoal.strategies.parameter_server.algorithm import Sync as Sync

PUBLIC = ("algorithm", "group_cluster", "run")
