"""Common parts of the runs of all strategies.

tracked_run         RunStart, RunHandle; TrackedRun, the base of runs without a scheduler
tracker             Tracker: progress, evaluations, stop rules, events; RunResult
local_checkpoint    LocalCheckpoints of runs without servers, and the BestModel
local_model         StepModel and LocalModel: a model inside one process
one_core            OneCore: the compiled loop of a linear model on one core
preflight           checks before a run begins
"""

PUBLIC = ("local_checkpoint", "local_model", "one_core", "preflight", "tracked_run", "tracker")
