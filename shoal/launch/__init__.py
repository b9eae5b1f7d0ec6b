"""Starts the processes of a cluster, and tells a process who it is.

``local`` starts a cluster on this machine, as threads or as processes that end with their parent;
``script`` runs a user's script beside one; ``remote_cluster`` and ``remote_node`` connect several
hosts; ``torchrun`` and ``mpirun_rank`` recognise ranks that other launchers started.
"""
