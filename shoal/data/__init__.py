"""Turns text, arrays or synthetic rows into packed sets that every worker maps into memory.

    load(DataSource("rcv1"), seed=0)  -> Dataset: train and test, packed   datasets, readers
    Slots(rows, batch, seed)          the rows of each slot                slots
    packed.take(rows)                 -> Batch, in global feature ids      csr_file, batch
    Localiser(features).local(...)    -> Local: indices into its key list  batch

Rows are kept as in the file: nothing is scaled, and labels keep their values (``signs`` maps
them).
"""

PUBLIC = (
    "batch",
    "csr_file",
    "datasets",
    "dense_file",
    "export",
    "packed",
    "readers",
    "slots",
    "split",
    "synthetic",
    "user_rows",
)  # for other packages; the other modules are private
