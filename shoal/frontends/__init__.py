"""Doors for programs that are not written for shoal: a PyTorch loop, its embeddings, and whoever starts them.

``shoal.torch`` has the names for users. ``place`` says which worker of how many a process is, ``crew`` who else is still
at it, ``flat`` how a module becomes one table, ``optimizers`` which update a torch.optim is. ``launching`` starts scripts.
"""
