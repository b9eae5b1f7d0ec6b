"""Rows arrive here: text or made-up rows become packed sets that every worker maps and reads only its own rows of.

    load(Source("rcv1"), seed=0)    -> Dataset: train and test, packed          datasets, readers, synthetic
    Slots(rows, batch, seed)        which rows a slot holds, whoever asks       slots
    packed.take(rows)               -> Batch, in global feature ids             packed, batch
    Localiser(features).local(...)  -> Local: places in its own key list        localise

A row is what stood in the file: nothing is scaled, and labels keep their values (``signs`` maps
them).
"""

PUBLIC = (
    "batch",
    "csr_file",
    "datasets",
    "dense_file",
    "export",
    "fingerprint",
    "hashing",
    "labels",
    "local_keys",
    "mapped",
    "permuted",
    "readers",
    "slots",
    "split",
    "synthetic",
    "user_rows",
)  # for other packages; the other modules are private
