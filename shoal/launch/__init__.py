"""Starts the processes of a cluster, and tells a process who it is.

``local`` starts a cluster on this machine, as threads or as processes that end with their parent;
``script`` runs a user's script beside one; ``remote_cluster`` and ``remote_node`` connect several
hosts; ``torchrun`` and ``mpirun_rank`` recognise ranks that other launchers started.
"""

PUBLIC = (
    "addresses",
    "batch_scripts",
    "cluster",
    "coordinator_process",
    "local",
    "mpirun_rank",
    "process_main",
    "process_pool",
    "processes",
    "remote_cluster",
    "remote_node",
    "resource_manager",
    "saved_store",
    "script",
    "serverless_pool",
    "shared_memory",
    "torchrun",
    "worker_process",
)  # for other packages; the other modules are private
