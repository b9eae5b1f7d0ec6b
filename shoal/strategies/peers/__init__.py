"""Peer to peer: every worker has the whole model and sends its changes to all others."""
