"""Handles Ctrl-C: without a traceback while modules are imported, then as KeyboardInterrupt.

Imports take some tenths of a second, and Ctrl-C in the middle of one gives a traceback, or is
lost. So ``__main__`` calls ``exit_on_interrupt`` before any other import: Ctrl-C then ends the
process silently, with exit code 130, because there is nothing to lose yet. A command calls
``raise_on_interrupt`` when it begins: from then on Ctrl-C is a KeyboardInterrupt, raised as soon as
no import is running (msgspec 0.22 crashes on one while it builds a decoder). Python's own start,
before our first line, is not covered.
"""

# Already imported; ``signal`` itself takes some milliseconds more.
import _signal as signal  # type: ignore[import-not-found]
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

INTERRUPTED = 128 + signal.SIGINT  # a shell's code for SIGINT
_AGAIN = 0.01  # seconds between checks for running imports


def exit_on_interrupt() -> None:
    """Let Ctrl-C end the process, unless it is ignored (``nohup``, ``&`` in a script)."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def raise_on_interrupt() -> None:
    """Make Ctrl-C a KeyboardInterrupt, so that the command can clean up."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, _interrupt)


def _end(number: int, frame: "FrameType | None") -> None:
    os._exit(INTERRUPTED)


def _interrupt(number: int, frame: "FrameType | None") -> None:
    if not _importing(frame):
        signal.default_int_handler(number, frame)
    import _thread  # threading has locks, and one may be held right now

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
