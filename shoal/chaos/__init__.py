"""Breaks a real training run on purpose, and accounts for every push.

    shoal chaos --seconds 60 --seed 7

``plan`` draws faults from a seed, within what the cluster tolerates; ``run_under_test`` is the run
that is broken, ``proxy`` cuts its nodes off; ``recovery`` follows each fault until it has healed;
``audit`` finds lost and doubled pushes in the values on the servers, and checks that sync kept its
promise of the same bits; ``drill`` puts these together, ``report`` and ``show`` present it.
"""

PUBLIC = ("drill", "plan", "report", "show")
