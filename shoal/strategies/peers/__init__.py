"""Peer to peer: every worker has the whole model and sends its changes to all others."""

from shoal.strategies.peers.settings import PeerToPeer as PeerToPeer
