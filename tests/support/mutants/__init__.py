"""Deliberately broken code: a module for each scenario of the simulator, named like it."""
