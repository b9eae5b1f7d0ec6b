"""Which worker computes which slot, when the model is evaluated, and when a run ends.

intervals     ``Intervals``: sets of slots; ``Runs`` are what messages carry
slot_queue    ``SlotQueue``: slots that are dealt, counted, given back and dealt again
evaluations   when the next evaluation is due, and how far slots are dealt before it
stop_rules    ``StopRules`` of a job, and ``StopDecision`` as the run goes on
stragglers    ``AutoDelay`` and ``SpeculativeCopies``
"""

PUBLIC = ("evaluations", "intervals", "slot_queue", "stop_rules", "stragglers")
