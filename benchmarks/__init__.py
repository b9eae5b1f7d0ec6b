"""Measures what shoal costs, beside rivals that do less, in the same run.

``shoal bench NAME`` runs one of ``BENCHES``. Each is a module with a ``BENCH`` (see ``harness``).
Benchmarks lie beside the installed package and are no part of it.
"""

BENCHES = {  # the module, and what it measures
    "billion": ("billion", "A billion floats over four servers, and one more joins"),
    "bytes": ("bytes", "Bytes and objective of a run with each filter"),
    "checkpoint": ("checkpoint", "Saving and loading a model, also while it is pushed to"),
    "clocks": ("clocks", "Vector clocks of ranges against one for every key"),
    "consensus": ("consensus", "How soon gossiping workers agree, by graph"),
    "copies": ("copies", "Pushes a second with one, two and three copies"),
    "curve": ("encryption", "What checksums and encryption cost"),
    "dense": ("dense", "Dense and sparse updates against an all-reduce"),
    "elastic": ("elastic", "A server joins a run and leaves it again"),
    "failover": ("failover", "How long pushes stand still when a server dies"),
    "filters": ("filters", "Bytes and speed of each filter on real pushes"),
    "handles": ("key_caching", "Key caching against sending every key"),
    "hogwild": ("hogwild", "Hogwild by rows a second and time to a loss"),
    "keys": ("keys", "Very many keys in one table"),
    "placement": ("placement", "How evenly segments lie after servers come and go"),
    "reading": ("reading", "Reading LIBSVM and Criteo text"),
    "sparse-logistic": ("sparse_logistic", "Block-proximal beside liblinear and saga"),
    "store": ("store", "Push and pull of the store against its rivals"),
    "torch": ("torch_training", "A PyTorch network beside DDP, RPC and Ray"),
    "training": ("training", "One worker and one server against one core"),
    "wire": ("half_precision", "Values as float32, float16 and bfloat16"),
}
