"""A cluster in one thread: the real client, server and coordinator on a seeded network that loses, repeats and delays.

``world`` holds the nodes and carries out their effects on virtual time, ``disk`` what is left after a crash; ``faults`` draws a
cluster and what befalls it from one seed, all as data, and ``nemesis`` brings it about; ``cluster`` has the lives of servers and
coordinators; ``workload`` are coroutines that push and pull in the counting model, ``idle_run`` the run that nobody asks for slots;
``checker`` and ``copies`` read the promises off the history; ``mutants`` are broken variants that they must catch; ``run`` puts
one plan together, ``many`` adds up thousands, ``shrink`` makes one that fails as short as it gets.

``peering`` does the same for peers without a server: ``peers_plan`` draws who comes, goes and what befalls them, ``sayer`` is a peer that
only talks, ``counted`` the real one with a model that counts, ``peer_mutants`` are the broken variants.
"""
