"""The client side of the store. ``Client`` makes calls, each of which is a ``Task``.

client     the calls, checked and prepared
session    what a client knows: view, clock, numbers
dispatch   starts operations, handles answers and placement changes
operation  what each kind of call sends, and how its result is made
inflight   resends with back-off
split      keys over servers
filtering  filters and error feedback
key_cache  key lists that servers know by a number
"""

PUBLIC = ("client", "filtering", "split", "task")
