"""The store: push, aggregate, update, pull.

On the way of a gradient: ``client`` makes a call ready, ``operation`` knows what each kind of call sends, ``split`` cuts it at
segment boundaries, ``dispatch`` and ``flight`` carry it there and back. On a server ``segment`` takes it in: ``ledger`` says
whether it was counted before, ``clock`` who waits for whom, ``aggregate`` holds the slots of a step, ``table`` and ``update``
change the rows (``kernels`` and ``generate`` are the compiled part). Protocol code only: no socket, file, clock or thread.
"""
