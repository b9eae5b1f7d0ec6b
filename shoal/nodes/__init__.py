"""The processes: state machines joined to a transport by a loop.

``loop`` carries effects out; ``server``, ``coordinator`` and ``worker`` are what it holds; ``blocking`` lends a client to
people who would rather call ``.result()``; ``storage`` is where a journal goes.
"""
