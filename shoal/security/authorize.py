"""Who may say what, by the role of its key. Read by whoever listens, before anybody else sees the message.

    worker        pushes, pulls and asks; takes part in training; looks
    client        the same, and whatever changes the cluster: tables, checkpoints, who is to leave; the scheduler of a group, and only
                  as that it has servers write (``Snap``, which names a folder)
    server        what servers say to each other and to the coordinator; it is the only one that holds segments
    coordinator   everything: its key stands for its whole host

A key that is confined to a group says nothing but as a member of that group; whoever has it may look under any name of its.

A message that is named nowhere here is the coordinator's alone. What comes back on a call that we made is no matter of this page: by the
key in the address only the one who was called can have said it.
"""

from __future__ import annotations

from shoal.security.address import parsed
from shoal.security.curve import LISTEN
from shoal.security.keyring import PublicKey
from shoal.wire import messages as m
from shoal.wire.messages import gossip, peers
from shoal.wire.messages.base import tag_of
from shoal.wire.messages.groups import (
    Allow,
    Dissolve,
    GroupProcessEnded,
    dealer,
    namespace,
)

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
    **dict.fromkeys((m.Append, m.Appended, m.Fill, m.Filled, m.Level, m.Levels, m.Adopt, m.Adopted), _SERVERS),
    **dict.fromkeys((m.Shrink, m.Full, m.Snapped, m.Opened), _SERVERS),
    **dict.fromkeys((m.Fence, m.SegmentsMoved, m.Rollback, m.Busy, m.Refusal, m.PushHeld, m.Done), _SERVERS),  # of each other's calls
    **dict.fromkeys((m.Values, m.Called, m.Counted, m.Forgot, m.TableStatusReply), _NOBODY),
    **dict.fromkeys((m.View, m.Welcome, m.IncarnationOver, m.Alive, m.StatusReply, m.Release, m.Allowed), _NOBODY),
    **dict.fromkeys((m.Deal, m.EvaluateNow, m.Described, m.Fed, m.Dismissed, Allow), _NOBODY),
    **dict.fromkeys((gossip.Leg, gossip.Without, gossip.Offer, gossip.Reached, gossip.Meet), _USERS),
    **dict.fromkeys((gossip.MeetReply, gossip.GossipProgressReport, gossip.LegDone, gossip.Show, gossip.LegReceived), _USERS),
    **dict.fromkeys((peers.Relay, peers.Beat, peers.Greet, peers.PeerGreeting, peers.Fetch, peers.ModelPiece), _USERS),
    **dict.fromkeys((peers.PeerStatus, peers.Watch, peers.Weigh, peers.StopPeers, peers.OwnedShare), _USERS),
}  # fmt: skip

LOOKS = (m.StatusRequest, m.Describe, m.Feed, m.Refresh, m.TableStatusRequest)  # changes nothing, and tells no weights

# What a node with such a key may be.
BE = {
    "worker": ("worker", "evaluator", "client"),
    "client": ("client", "worker", "evaluator", "scheduler"),
    "server": ("server",),
}


def objection(key: PublicKey, message: m.Message, sender: str) -> str:
    """Why whoever has this key, and calls itself so, may not say this; empty if it may."""
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
    """The same, of any message of that kind."""
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
        return f"the address that {hello.name} gives is not one of its key's"  # others would be sent to somebody else
    return ""
