"""Makes a script's process end with its launcher, then becomes the script.

`ps` and `top` show the name of the executed file, so that file is a link to Python with the
worker's name.
"""

from __future__ import annotations

import contextlib
import os
import sys

from shoal.signals import end_with_parent


def main() -> None:
    launcher, link, *command = sys.argv[1:]
    end_with_parent(int(launcher))
    with contextlib.suppress(OSError):  # without a link there is no name
        os.symlink(sys.executable, link)
        os.execv(link, [sys.executable, *command])  # Python finds its modules by the second
    os.execv(sys.executable, [sys.executable, *command])


if __name__ == "__main__":
    main()
