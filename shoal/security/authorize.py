"""Which messages a key may send, by its role; checked before all other code.

    worker        push, pull, query, training messages, status
    client        the same, and changes of tables, checkpoints and members. As the scheduler
                  of a group, and only then, it lets servers write (``Snap``, which names a folder)
    server        messages between servers and to the coordinator; only servers hold segments
    coordinator   everything: its key stands for its whole host

A key that is bound to a group sends only as a member of that group, but may ask for the status
under any of its names. Messages not listed here are the coordinator's alone. Answers on our own
calls are not checked here: by the key in the address, only the called node can have sent them.
"""

from __future__ import annotations

from shoal.security.address import parsed
from shoal.security.curve import LISTEN
from shoal.security.keyring import PublicKey
from shoal.wire import messages as m
from shoal.wire.messages import gossip, peers
from shoal.wire.messages.base import tag_of
from shoal.wire.messages.groups import Allow, Dissolve, GroupProcessEnded, dealer, namespace

_ANYBODY = frozenset(("worker", "client", "server"))
_USERS = frozenset(("worker", "client"))
_CLIENTS = frozenset(("client",))
_SERVERS = frozenset(("server",))
_NOBODY = frozenset[str]()  # but the coordinator's key

MAY: dict[type[m.Message], frozenset[str]] = {
    **dict.fromkeys((m.Hello, m.Heartbeat, m.Leave, m.Refresh, m.StatusRequest), _ANYBODY),
    **dict.fromkeys((m.Describe, m.Feed, m.Unfit), _ANYBODY),
    **dict.fromkeys((m.Push, m.Pull, m.Call, m.Park, m.TableStatusRequest, m.Want, m.EvaluationReady), _USERS),
    **dict.fromkeys((m.Create, m.Drop, m.Delay, m.Save, m.Drain, m.Snap, Dissolve, GroupProcessEnded), _CLIENTS),
    **dict.fromkeys((m.Append, m.Appended, m.BackfillPiece, m.BackfillReceived, m.Level, m.Levels, m.Adopt, m.Adopted), _SERVERS),
    **dict.fromkeys((m.Shrink, m.BackfillComplete, m.Snapped, m.Opened), _SERVERS),
    # of each other's calls
    **dict.fromkeys((m.Fence, m.SegmentsMoved, m.Rollback, m.Busy, m.Refusal, m.RequestHeld, m.Done), _SERVERS),
    **dict.fromkeys((m.Values, m.Called, m.Counted, m.Forgot, m.TableStatusReply), _NOBODY),
    **dict.fromkeys((m.View, m.Welcome, m.IncarnationOver, m.Alive, m.StatusReply, m.Release, m.Allowed), _NOBODY),
    **dict.fromkeys((m.Deal, m.EvaluateNow, m.Described, m.Fed, m.Dismissed, Allow), _NOBODY),
    **dict.fromkeys((gossip.Leg, gossip.Without, gossip.Offer, gossip.Reached, gossip.Meet), _USERS),
    **dict.fromkeys((gossip.MeetReply, gossip.GossipProgressReport, gossip.LegDone, gossip.Show, gossip.LegReceived), _USERS),
    **dict.fromkeys((peers.Relay, peers.Beat, peers.Greet, peers.PeerGreeting, peers.Fetch, peers.ModelPiece), _USERS),
    **dict.fromkeys((peers.PeerStatus, peers.Watch, peers.Weigh, peers.StopPeers, peers.OwnedShare), _USERS),
}  # fmt: skip

# changes nothing, and tells no weights
LOOKS = (m.StatusRequest, m.Describe, m.Feed, m.Refresh, m.TableStatusRequest)

# What a node with such a key may be.
BE = {
    "worker": ("worker", "evaluator", "client"),
    "client": ("client", "worker", "evaluator", "scheduler"),
    "server": ("server",),
}


def objection(key: PublicKey, message: m.Message, sender: str) -> str:
    """Why this key and name may not send this message; empty if they may."""
    why = of_kind(key, type(message))
    if why or key.role == "coordinator":
        return why
    if key.group and namespace(sender) != key.group and not isinstance(message, LOOKS):
        return (
            f"the key of {key.name} is confined to group {key.group!r}, and {sender} is none of its members: use it with shoal train "
            f"--servers-at ADDRESS --group {key.group}, or shoal.connect(ADDRESS, group={key.group!r})"
        )
    if isinstance(message, m.Snap | GroupProcessEnded) and sender != dealer(namespace(sender)):
        return f"only the scheduler of a group says this ({tag_of(type(message))}), and {sender} is none"
    return _hello(key, message) if isinstance(message, m.Hello) else ""


def of_kind(key: PublicKey, kind: type[m.Message]) -> str:
    """The same for any message of this kind."""
    if key.role != "coordinator" and key.role not in MAY.get(kind, _NOBODY):
        who = sorted(MAY.get(kind, _NOBODY))
        needs = " or ".join([*who, "coordinator"])
        return f"the key of {key.name} is a {key.role}'s, and this ({tag_of(kind)}) needs one of a {needs}"
    return ""


def _hello(key: PublicKey, hello: m.Hello) -> str:
    if hello.role not in BE.get(key.role, ()):
        needs = next((role for role, may in BE.items() if hello.role in may), hello.role)
        return f"the key of {key.name} is a {key.role}'s, not a {hello.role}'s: it needs one of its own (shoal key new NAME --role {needs}, on its host)"
    if hello.address and key.role not in LISTEN:
        return f"the key of {key.name} is a {key.role}'s: nobody calls those, so it has no address"
    if hello.address and parsed(hello.address).key != key.public:
        # others would be sent to somebody else
        return f"the address that {hello.name} gives is not one of its key's"
    return ""
