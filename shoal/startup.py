"""The first moments of a command: Ctrl-C while modules are imported leaves no traceback.

Imports take some tenths of a second, and Python answers Ctrl-C in the middle of one with a traceback, or loses it. So ``__main__`` calls
``quietly`` before it imports anything else: Ctrl-C ends the process without a word, with exit code 130, while there is nothing to lose yet. A
command calls ``awake`` when it begins: Ctrl-C is a KeyboardInterrupt from then on, raised as soon as no module is being imported
(msgspec 0.22 dies of one while a decoder is made). What Python itself does before our first line is not in our hands.
"""

# The part that is there already: the module around it takes some milliseconds more.
import _signal as signal  # type: ignore[import-not-found]
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

INTERRUPTED = 128 + signal.SIGINT  # what a shell says of it
_AGAIN = 0.01  # seconds until it is seen whether an import is over


def quietly() -> None:
    """From now on Ctrl-C ends the process, unless whoever started it wants it not to hear (``nohup``, ``&`` in a script)."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def awake() -> None:
    """From now on Ctrl-C is a KeyboardInterrupt: there is something to put away first."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, _interrupt)


def _end(number: int, frame: "FrameType | None") -> None:
    os._exit(INTERRUPTED)


def _interrupt(number: int, frame: "FrameType | None") -> None:
    if not _importing(frame):
        signal.default_int_handler(number, frame)
    import _thread  # threading has locks, and this may have come while one is held

    _thread.start_new_thread(_send_again, (number,))


def _send_again(number: int) -> None:
    import time

    time.sleep(_AGAIN)
    os.kill(os.getpid(), number)


def _importing(frame: "FrameType | None") -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
