"""The command line: a module for each command, each a thin door to functions that anyone can import."""

from shoal.cli.main import main as main

PUBLIC = ("main",)  # for other packages; the other modules are private
