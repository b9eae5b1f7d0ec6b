"""The server side of the store. ``TableServer`` is one server's part of one table.

table_server   puts placements into effect; has a primary, backups, a reconciler
primary        pushes and pulls of the segments that this server is primary of
segment_state  rows and books of some segments; checks requests against them
aggregate      slots of a step;  ledger: what was counted;  clock: who waits for whom
replicate      a primary's log;  backup: who follows it;  backfill: a new backup
reconcile      brings survivors level after the primary is gone
query_runner, key_lists, load, outcome, vector_clock
"""

PUBLIC = (
    "backfill",
    "key_lists",
    "load",
    "outcome",
    "primary",
    "query_runner",
    "segment_state",
    "table_server",
    "vector_clock",
)  # for other packages; the other modules are private
