"""Breaks a real training run on purpose, and accounts for every push.

    shoal chaos --seconds 60 --seed 7

``plan`` draws faults from a seed, within what the cluster can bear; ``target`` is the run that is
broken; ``recovery`` follows each fault until it has healed; ``audit`` reads from the values on the
servers what was lost or counted twice, and whether sync kept its promise of the same bits;
``drill`` puts these together, ``report`` and ``show`` present it. ``proxy`` cuts nodes off.
"""

PUBLIC = (
    "drill",
    "plan",
    "report",
    "show",
)  # for other packages; the other modules are private
