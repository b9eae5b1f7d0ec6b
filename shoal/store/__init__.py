"""The store: key-value tables over servers, with push, aggregate, update, pull.

    client/       a client's calls: split by server, sent, resent, completed
    server/       a table's segments on one server, as primary or as backup
    table/        the rows of one table in memory, and the update rules
    checkpoint/   a model on disk
    query         functions that run where the rows are

Protocol code only: no socket, clock or thread; files only through a ``Disk`` that is passed in.
"""

PUBLIC = ("checkpoint", "client", "query", "server", "table")
