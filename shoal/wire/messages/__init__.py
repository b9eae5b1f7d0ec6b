"""Everything one node can say to another: a page per conversation, each docstring a sentence of it.

A message is a header and up to four arrays that ride behind it as raw frames: keys are uint64, values float32 or,
where a header says so, 16 bits in the form it names; all little-endian (``coding`` turns them into bytes and back).

Identity: the coordinator hands every node that joins an *incarnation*, a number never given twice. Requests are numbered
from ``incarnation << 32``, so that an answer meant for an earlier life of a node matches nothing in the next one.
"""

from __future__ import annotations

from shoal.wire.messages import (
    gossip,
    groups,
    hosts,
    membership,
    moves,
    peers,
    replication,
    requests,
    scheduling,
    security,
)
from shoal.wire.messages.base import *  # noqa: F403
from shoal.wire.messages.hosts import *  # noqa: F403
from shoal.wire.messages.membership import *  # noqa: F403
from shoal.wire.messages.moves import *  # noqa: F403
from shoal.wire.messages.replication import *  # noqa: F403
from shoal.wire.messages.requests import *  # noqa: F403
from shoal.wire.messages.scheduling import *  # noqa: F403
from shoal.wire.messages.security import *  # noqa: F403

AnyMessage = (
    membership.MembershipMessage
    | scheduling.SchedulingMessage
    | requests.RequestMessage
    | replication.ReplicationMessage
    | moves.MoveMessage
    | hosts.HostMessage
    | security.SecurityMessage
    | groups.GroupMessage
    | gossip.GossipMessage
    | peers.PeerMessage
)
