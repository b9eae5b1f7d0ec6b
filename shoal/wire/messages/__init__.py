"""Every message between nodes, a module per conversation; docstrings say it in words.

A message is a header and up to four arrays behind it as raw frames: keys are uint64, values
float32 or the 16-bit form that the header names; all little-endian (``coding`` encodes and decodes
them).

The coordinator gives every node that joins an *incarnation*, a number that is never used again.
Request numbers start at ``incarnation << 32``, so that an answer for an earlier incarnation of a
node never matches a request of a later one.
"""

from __future__ import annotations

from shoal.wire.messages import gossip, groups, hosts, membership, peers, replication, requests, scheduling
from shoal.wire.messages.base import *  # noqa: F403
from shoal.wire.messages.hosts import *  # noqa: F403
from shoal.wire.messages.membership import *  # noqa: F403
from shoal.wire.messages.replication import *  # noqa: F403
from shoal.wire.messages.requests import *  # noqa: F403
from shoal.wire.messages.scheduling import *  # noqa: F403

PUBLIC = (
    "base",
    "gossip",
    "groups",
    "peers",
    "replication",
)  # for other packages; the other modules are private

AnyMessage = (
    membership.MembershipMessage
    | scheduling.SchedulingMessage
    | requests.RequestMessage
    | replication.ReplicationMessage
    | hosts.HostMessage
    | groups.GroupMessage
    | gossip.GossipMessage
    | peers.PeerMessage
)
