"""A cluster in one thread: the real client, server and coordinator on a seeded network that loses, repeats and delays.

``world`` holds the nodes and carries out their effects on virtual time; ``faults`` draws a cluster and what befalls it from
one seed; ``workload`` are coroutines that push and pull in the counting model; ``checker`` reads the promises off the
history; ``mutants`` are broken variants that the checker must catch; ``run`` puts one seed together.
"""
