"""Ways to train in parallel: one folder for each, with its settings, algorithm, worker and run."""
