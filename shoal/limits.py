"""Every bound and default in one place; ``shoal limits`` prints this page.

Times are integer nanoseconds, sizes are bytes unless the name says otherwise. Protocol code reads its bounds from here
and nowhere else, so that a test can see all of them and a reader need not search. How long nodes wait for each other is set
by the operator: ``timing``.
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
VIEW_BYTES = HEADER_BYTES * 3 // 4  # of a view that takes more members: what else grows in it has room, too
MEMBERS = 1_024  # nodes in one cluster
FORMER = 1_024  # names whose former lives are remembered: what they said may still be on its way
LOST = 64  # servers that are gone, told with the reason
TABLES = 256  # tables in one cluster
GROUPS = 64  # of workers that the operator has named
GROUP_TABLES = 16  # of one group, if the operator says nothing else
GROUP_MEMBERS = 256

# What a table may be.
KEY_LIMIT = 1 << 63  # keys are below this
WIDTH = 65_536  # floats in one row
ADMIT = 255  # pushes before a key has a row
PUSHED = 8  # numbers that a push brings for one weight
SLOTS_PER_STEP = 4_096
SEGMENTS_PER_SERVER = 8
COPIES = 3  # of a segment
SEGMENTS_PER_TABLE = 8_192
DENSE_SEGMENT_BYTES = 32 * MB
GIVEN_PATH = 4_096  # of the file that a table's weights are given in
GIVEN_ABOUT = 65_536  # what is said of them: it is in every view of the cluster
ADDRESS_BYTES = 1 << 46  # of a dense table, wherever its rows are: each server has addresses for all of them
ROWS_PER_TABLE = (1 << 32) - 2  # on one server: rows are numbered by 32 bits

# Who is told.
EVENTS_WAITING = 100_000  # for a callback that is slow to hear; then the oldest are left out
LINES_WAITING = 10_000  # for a pipe that nobody reads; likewise
HEAR_WITHIN = 10 * SECOND  # at the end of a run: for callbacks, pipes and logs to take what is left

# Who may call.
HELLO_WITHIN = 5 * SECOND
UNTIL = 253_402_300_799  # seconds since 1970: the last moment that is written with four digits of a year
CONNECTIONS = 2_048  # to one node that listens; fewer where the process may have fewer descriptors
CONNECTIONS_LEAST = 8
CONNECTIONS_AGAIN = 0.9  # of them: when so few are left, more are taken
DESCRIPTORS_KEPT = 128  # for a node's own files and calls, and those who call while the door is being closed
LOG_LINES = 50  # about callers that were refused, in a second; more are counted
LOG_AGAIN = 5 * SECOND  # until the same line is written again, if it comes; then twice as long,
LOG_SELDOM = 600 * SECOND  # and this at last
REFUSED_AFTER = 3  # handshakes in a row that the other side broke off: it will not have us
REDIAL = 1 * SECOND  # between two calls to a node that refused us

# How a client waits.
RESEND_BUDGET = 0.1  # resends allowed per first send, beyond those that were answered and one a second
CLIENT_WINDOW = 256 * MB  # bytes in flight per client; more tasks queue
CLIENT_REQUESTS = 1_024  # requests in flight per client
QUEUE = 4_096  # messages that a socket holds for one peer: more than any client has in flight
BUSY_RETRY = 50 * MILLISECOND
BUSY_MOST = 250 * MILLISECOND  # who is busy again and again is asked less and less often, but not less than this

# How much a server holds for others.
HELD_BYTES = 1_024 * MB  # pushes of steps beyond the oldest open one
LEDGER_WINDOW = 1 << 20  # numbers above a ledger's mark
STEPS_AHEAD = 64  # steps beyond the oldest open one that may be held
CLOCK_RANGES = 4_096  # ranges of a table that have a vector clock of their own
CLOCKS_TOLD = 16_384  # numbers of vector clocks in one message: past that, ranges are told together
STALENESS_BUCKETS = 1_024  # the last one holds all that is staler
ADMISSION_BYTES = 256 * MB  # to count how often keys of a table were pushed: a byte for each, or a sketch
ADMISSION_FIRST = 2 * MB  # of a sketch, at first
EVICT_ROWS = 1_024  # fewer are not looked through for rows that are zero again
CLEAR_ROWS = 65_536  # of segments that went, looked at in one piece: about a millisecond
CLEAR_BYTES = 1 * MB  # that are taken from the system, or given back, in such a piece
CLEAR_EVERY = 5 * MILLISECOND  # one of them
BACKLOG = 4_096  # messages that wait while the compute thread is busy

# What a question may find.
CALL_PIECE = 262_144  # elements of a table that it is handed at once
CALL_MEMORY = 1_024 * MB  # that a user's own question may take
TRY_WITHIN = 5 * SECOND  # for a user's update rule to be tried, in a process of its own
TRY_MEMORY = 512 * MB
FILTER_WITHIN = 2 * SECOND  # for a user's filter and one message, at a server: less than it takes to be held for dead
FILTER_STARTS = 30 * SECOND  # for its process to come up
FILTER_MEMORY = 1_024 * MB
CALLS_APART = 4  # of them at once, on one server
CALL_NUMBERS = 16_384  # in one answer
CALL_KEYS = 65_536
CALL_VALUES = 1 << 20

# Lists of keys that are known by a number.
HANDLE_KEYS = 1 << 24  # keys that one client names at one server; 0: none
HANDLE_LEAST = 4  # keys in such a list: shorter ones are sent
HANDLE_BYTES = 512 * MB  # that a server keeps of all clients' lists; the least recently used go

# Peers without a server.
PEERS = 256  # in one run
PEER_WINDOW = 64  # things that one has said and not all have heard; then it waits with the next, and adds to it
PEER_BYTES = 256 * MB  # of these
PEER_PARTS = 64  # of the weights, where they are owned
PEER_GONE = 2_048  # lives that are gone and were never met: they are told with every beat
PEER_NAME = 128  # characters
PEER_WHY = 300
PIECE_BYTES = 16 * MB  # of a model that is copied
EDGE_LINE = 4_096  # characters of a line in a file of links
EDGE_LINES = 1 << 20

# What a worker keeps.
SLOT_CACHE = 1_024 * MB  # rows of slots that it computed, for the next pass

# How copies are kept.
COPIES_FLYING = 4  # messages to one backup that are not acknowledged
COPY_BYTES = 16 * MB  # changes that travel together
COPIES_HELD = 256 * MB  # of a table: that wait for one backup, or at it for a segment
COPIES_EARLY = 64  # messages between servers that came before what goes before them, and wait
FILL_BYTES = 4 * MB  # one piece of a segment: what else goes to that server waits behind it
FILLS_FLYING = 3

# How segments change hands while everything goes on.
MOVE_BYTES = 64 * MB  # of a table that go from one server to another before they change hands: then the next ones do
MOVE_RATE = 200 * MB  # bytes a second that one server sends to those it fills
MOVE_RATE_MOST = 1 << 50  # that can be asked for: no machine sends as many
PACE_AHEAD = 100 * MILLISECOND  # of that rate may be sent at once: more than passes between two looks
COPIES_WITHIN = 0.25  # of the mean: a server that has so many more copies of a table's segments, or fewer, keeps them
LOAD_KEPT = 0.7  # of what was told before, in what is told next: rows a second, evened out over some six seconds
LOAD_BINS = 8  # parts of a segment in which rows are counted: so it is known where to split it
LOAD_LEAST = 10_000.0  # rows a second of all servers: for fewer nothing is moved
LOAD_STEADY = 3  # tellings for which the same server is the hottest, before anything is moved for it; twice as many after each time,
LOAD_PATIENCE = 48  # but no more than this
LOAD_ABOVE = 0.25  # a server that is asked for so much more than the mean gives something away,
LOAD_GAIN = 0.1  # if that spares it this much of the mean,
LOAD_TRADES = 8  # and so often at one time

# Nodes of other hosts.
HOSTS_WITHIN = 600 * SECOND  # for the first servers of a run to come from elsewhere
ALONE_WITHIN = 10 * SECOND  # for another command to be done with a folder of keys
COUNT = 64  # nodes that one command starts on a host
FEED = 64  # events that a coordinator remembers for who looks on
UNFIT = 100  # nodes that could not take part, told one by one
UNFIT_CHARS = 500

# When a kernel leaves the loop's thread.
SPANS = 2_000  # of what a node did, told one by one, in a second
INLINE_ELEMENTS = 262_144  # about two milliseconds of work

# What a checkpoint may be, and how it is made.
MANIFEST_BYTES = 256 * MB
TENSORS_BYTES = 65_536  # what stands before the numbers in a segment's file
CHECKPOINTS_KEPT = 3  # and the best one

# How long a local cluster takes to go.
DRAIN = 5 * SECOND

# How long a web server may be silent.
UPLOAD_SILENCE = 30 * SECOND

# What a row may be.
FEATURES = (1 << 32) - 1  # ids are below this; more are hashed to fewer
LINE = 4 * MB  # one line of text
CHUNK = 4 * MB  # text parsed in one go
BAD_LINES_SHOWN = 5  # of those that were skipped, how many are told
LABELS_COUNTED = 16  # distinct labels that a set keeps count of
HASH_BITS = 20  # of click logs, unless told otherwise
HASH_BITS_MOST = 31
EXPANSION = 300  # a compressed file that grows more than so many times is refused,
EXPANSION_FROM = 64 * MB  # once so much has come out of it
