"""Serial: minibatch training on one core, the rival of all other strategies."""
