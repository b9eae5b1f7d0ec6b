"""A real training run on this machine, broken on purpose, and the account of what became of every push.

    shoal chaos --seconds 60 --seed 7

``plan`` decides whom to hurt and when, from a seed and from what the cluster can bear; ``stage`` is the run it is done to;
``patients`` follows each fault until it has healed; ``account`` finds out what was lost or counted twice, from the values on
the servers and not from anybody's word; ``same_bits`` whether sync kept its promise; ``drill`` puts these together,
``report`` says what came of it, ``show`` while it goes on, ``picture`` afterwards.
"""
