"""The command line: a thin module for each command, over functions that anyone can import."""

from shoal.cli.main import main as main

PUBLIC = ("main",)  # for other packages; the other modules are private
