"""Nodes: state machines (``handle(now, event) -> effects``), and the loop that runs one.

coordinator   members, tables and their placement: ``Coordinator``, with ``Roster`` behind it
scheduler     slots, evaluations and stop rules of a run; ``scheduler_node`` for a worker group
server        tables; ``drainable`` lets any node leave
worker        a client with its membership; ``trainer`` and ``evaluator`` run on one
loop          joins a node to a transport, a journal, a compute thread and a disk thread
factory       builds the nodes of a run from its job: begin here
"""

PUBLIC = (
    "batches", "checkpointing", "coordinator", "drainable", "evaluator", "factory", "journal", "loop",
    "membership_journal", "scheduler", "scheduler_journal", "scheduler_node", "server", "server_strategy",
    "time_accounting", "trainer", "worker",
)  # fmt: skip
