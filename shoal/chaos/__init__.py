"""Breaks a real training run on purpose, and accounts for every push.

    shoal chaos --seconds 60 --seed 7

``plan`` draws faults from a seed, within what the cluster tolerates; ``target`` is the run that is
broken; ``recovery`` follows each fault until it has healed; ``audit`` finds lost and doubled pushes
in the values on the servers, and checks that sync kept its promise of the same bits; ``drill`` puts
these together, ``report`` and ``show`` present it. ``proxy`` cuts nodes off.
"""

PUBLIC = (
    "drill",
    "plan",
    "report",
    "show",
)  # for other packages; the other modules are private
