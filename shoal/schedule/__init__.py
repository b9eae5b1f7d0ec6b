"""Which worker computes which slot, when the model is evaluated, and when a run ends."""
