"""Code that is not ours: a user's question or filter may raise anything, and whoever runs it goes on.

try: ...                                  what they wrote
except BaseException as error:
    if ends_us(error):
        raise
    raise Invalid(f"question 'mine' failed: {told(error)}") from None
"""

from __future__ import annotations

import signal
import threading
from pathlib import Path

_LONGEST = 2_000  # characters of what an error says
_SHORT = 400  # with its kind and place


def ends_us(error: BaseException) -> bool:
    """Was this process told to end? Python says so in its main thread only, and only where a handler raises it."""
    number = {KeyboardInterrupt: signal.SIGINT, SystemExit: signal.SIGTERM}.get(type(error))
    if number is None or threading.current_thread() is not threading.main_thread():
        return False
    return callable(signal.getsignal(number))


def told(error: BaseException) -> str:
    """An error in one line, with the place in their file. One that cannot be printed has its name at least."""
    text = said(error)[:_SHORT]
    return readable(f"{type(error).__name__}{': ' if text else ''}{text}{_where(error)}")


def said(error: BaseException) -> str:
    """What an error says, in one line."""
    try:
        return readable(" ".join(str(error).split())[:_LONGEST])
    except BaseException as another:  # of theirs, too: __str__ may be anything
        if ends_us(another):
            raise
        return "it cannot be printed"


def readable(text: str) -> str:
    """As UTF-8 can say it: names of files may be what no text can be."""
    return text.encode("utf-8", "replace").decode()


def _where(error: BaseException) -> str:
    place = error.__traceback__
    if place is None:
        return ""
    while place.tb_next is not None:
        place = place.tb_next
    return f" ({Path(place.tb_frame.f_code.co_filename).name}, line {place.tb_lineno})"
