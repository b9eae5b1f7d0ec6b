"""What runs have in common, whatever their strategy: checks, tracker, result, checkpoints."""
