"""Every bound of the protocol in one place; ``shoal limits`` prints this page.

Times are integer nanoseconds, sizes are bytes unless the name says otherwise. Protocol code reads
its bounds only here, so that tests and readers find all of them. The operator sets how long nodes
wait for each other: ``timing``. What a job leaves out has its default in ``job``.
"""

from __future__ import annotations

MILLISECOND = 1_000_000
SECOND = 1_000_000_000
MB = 1 << 20

# What a message may be.
PROTOCOL = 10  # first byte pair of every header; another number is refused at hello
FRAME_BYTES = 64 * MB  # one array; larger pushes are split at segment boundaries
HEADER_BYTES = 1 * MB  # one control message
FRAMES = 4  # arrays behind one header
COORDINATOR = "coordinator"  # its name, everywhere
NAME_CHARS = 128  # node and table names
VIEW_BYTES = HEADER_BYTES * 3 // 4  # of a view that accepts more members
MEMBERS = 1_024  # nodes in one cluster
FORMER = 1_024  # names whose former incarnations are remembered: late messages
LOST = 64  # lost servers in a view, with the reason
TABLES = 256  # tables in one cluster
GROUPS = 64  # of workers, named by the operator
GROUP_TABLES = 16  # of one group, by default
GROUP_MEMBERS = 256

# What a table may be.
KEY_LIMIT = 1 << 63  # keys are below this
WIDTH = 65_536  # floats in one row
ADMIT = 255  # pushes before a key gets a row
PUSHED = 8  # numbers per weight in a push
SLOTS_PER_STEP = 4_096
SEGMENTS_PER_SERVER = 8
COPIES = 3  # of a segment
SEGMENTS_PER_TABLE = 8_192
DENSE_SEGMENT_BYTES = 32 * MB
GIVEN_PATH = 4_096  # characters of the file with initial weights
GIVEN_ABOUT = 65_536  # characters that describe it: every view has them
ADDRESS_BYTES = 1 << 46  # of a dense table: each server reserves addresses for all rows
ROWS_PER_TABLE = (1 << 32) - 2  # on one server: row numbers have 32 bits

# Callbacks and output.
EVENTS_WAITING = 100_000  # for a slow callback; then the oldest are dropped
LINES_WAITING = 10_000  # for a pipe without a reader; likewise
HEAR_WITHIN = 10 * SECOND  # at the end of a run: for callbacks, pipes and logs

# Connections.
HELLO_WITHIN = 5 * SECOND
UNTIL = 253_402_300_799  # seconds since 1970: the end of the year 9999
CONNECTIONS = 2_048  # to one listening node; fewer if descriptors are short
CONNECTIONS_LEAST = 8
CONNECTIONS_AGAIN = 0.9  # of them: below this, new ones are accepted again
DESCRIPTORS_KEPT = 128  # for a node's own files and calls, and late callers
LOG_LINES = 50  # about refused callers, per second; more are counted
LOG_AGAIN = 5 * SECOND  # until a line is repeated; then doubled,
LOG_SELDOM = 600 * SECOND  # up to this
REFUSED_AFTER = 3  # broken handshakes in a row: the other side refuses us
REDIAL = 1 * SECOND  # between calls to a node that refused us

# Clients.
RESEND_BUDGET = 0.1  # resends per first send, beyond answered ones and one a second
CLIENT_WINDOW = 256 * MB  # bytes in flight per client; more tasks queue
CLIENT_REQUESTS = 1_024  # requests in flight per client
QUEUE = 4_096  # messages in a socket for one peer: more than a client has in flight
BUSY_RETRY = 50 * MILLISECOND
BUSY_MOST = 250 * MILLISECOND  # the longest wait before a busy server is asked again

# Servers.
HELD_BYTES = 1_024 * MB  # pushes of steps after the oldest open one
LEDGER_WINDOW = 1 << 20  # numbers above a ledger's mark
STEPS_AHEAD = 64  # held steps after the oldest open one
CLOCK_RANGES = 4_096  # ranges of a table with vector clocks of their own
CLOCKS_TOLD = 16_384  # vector clock entries in one message; beyond that ranges are merged
STALENESS_BUCKETS = 1_024  # the last one holds all higher values
ADMISSION_BYTES = 256 * MB  # to count pushes of a table's keys: a byte each, or a sketch
ADMISSION_FIRST = 2 * MB  # of a sketch, initially
EVICT_ROWS = 1_024  # smaller tables are not searched for zero rows
CLEAR_ROWS = 65_536  # of dropped segments, cleared in one piece: about a millisecond
CLEAR_BYTES = 1 * MB  # allocated or freed in such a piece
CLEAR_EVERY = 5 * MILLISECOND  # between two pieces
BACKLOG = 4_096  # messages that wait for the compute thread

# Queries, and users' code.
CALL_PIECE = 262_144  # elements of a table in one piece
CALL_MEMORY = 1_024 * MB  # for a user's own query
TRY_WITHIN = 5 * SECOND  # for the trial of a user's update rule, in its own process
TRY_MEMORY = 512 * MB
FILTER_WITHIN = 2 * SECOND  # for a user's filter and one message on a server: less than ``dead``
FILTER_STARTS = 30 * SECOND  # for its process to start
FILTER_MEMORY = 1_024 * MB
CALLS_APART = 4  # users' queries at once on one server
CALL_NUMBERS = 16_384  # in one answer
CALL_KEYS = 65_536
CALL_VALUES = 1 << 20

# Handles: key lists that are named by a number.
HANDLE_KEYS = 1 << 24  # keys in the lists of one client at one server; 0: none
HANDLE_LEAST = 4  # keys in such a list; shorter ones are sent in full
HANDLE_BYTES = 512 * MB  # of all lists on a server; the least recently used are dropped

# Peers without servers.
PEERS = 256  # in one run
PEER_WINDOW = 64  # unacknowledged messages of a peer; then it merges the next ones
PEER_BYTES = 256 * MB  # of these
PEER_PARTS = 64  # of the weights, where peers own them
PEER_GONE = 2_048  # lost incarnations that were never met: in every heartbeat
PEER_NAME = 128  # characters
PEER_WHY = 300
PIECE_BYTES = 16 * MB  # of a copied model
EDGE_LINE = 4_096  # characters of a line in an edge list
EDGE_LINES = 1 << 20

# Workers.
SLOT_CACHE = 1_024 * MB  # rows of computed slots, for the next epoch

# Replication.
COPIES_FLYING = 4  # unacknowledged messages to one backup
COPY_BYTES = 16 * MB  # changes in one message
COPIES_HELD = 256 * MB  # of a table: waiting for one backup, or at it for a segment
COPIES_EARLY = 64  # messages between servers that arrived too early, and wait
FILL_BYTES = 4 * MB  # one piece of a segment: other messages to that server wait behind it
FILLS_FLYING = 3

# Moves of segments.
MOVE_BYTES = 64 * MB  # of a table that move at once between two servers
MOVE_RATE = 200 * MB  # bytes a second that one server sends to new replicas
MOVE_RATE_MOST = 1 << 50  # the highest rate that can be set
PACE_AHEAD = 100 * MILLISECOND  # of that rate may be sent at once: more than one turn of the loop
COPIES_WITHIN = 0.25  # of the mean: smaller differences in a table's copies are accepted
LOAD_KEPT = 0.7  # weight of the old load in the new: a mean over some six seconds
LOAD_BINS = 8  # per segment, to count rows: shows where to split it
LOAD_LEAST = 10_000.0  # rows a second of all servers: below it nothing is moved
LOAD_STEADY = 3  # reports with the same hottest server until a move; doubled after each,
LOAD_PATIENCE = 48  # up to this
LOAD_ABOVE = 0.25  # a server this far above the mean load gives segments away,
LOAD_GAIN = 0.1  # if that saves it this much of the mean,
LOAD_TRADES = 8  # at most so many at a time

# Nodes of other hosts.
HOSTS_WITHIN = 600 * SECOND  # for the first servers of a run on other hosts
ALONE_WITHIN = 10 * SECOND  # for another command to release a folder of keys
COUNT = 64  # nodes that one command starts on a host
FEED = 64  # events that a coordinator keeps for `shoal status`
UNFIT = 100  # nodes that could not take part, reported one by one
UNFIT_CHARS = 500

# Tracing, and when a kernel leaves the loop's thread.
SPANS = 2_000  # of a node in a second, reported one by one
INLINE_ELEMENTS = 262_144  # about two milliseconds of work

# Checkpoints.
MANIFEST_BYTES = 256 * MB
TENSORS_BYTES = 65_536  # the header of a segment's file
CHECKPOINTS_KEPT = 3  # and the best one

# The end of a local cluster.
DRAIN = 5 * SECOND

# Uploads.
UPLOAD_SILENCE = 30 * SECOND

# What a row may be.
FEATURES = (1 << 32) - 1  # ids are below this; more are hashed to fewer
LINE = 4 * MB  # one line of text
CHUNK = 4 * MB  # text parsed in one go
BAD_LINES_SHOWN = 5  # of the skipped lines
LABELS_COUNTED = 16  # distinct labels that a data set counts
HASH_BITS = 20  # of click logs, by default
HASH_BITS_MOST = 31
EXPANSION = 300  # a compressed file that grows by more than this is refused,
EXPANSION_FROM = 64 * MB  # once it has reached this size
