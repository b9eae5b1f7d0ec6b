"""The client side of the store: splits, sends, resends and puts answers together."""
