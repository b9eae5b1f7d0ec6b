"""Serial: minibatch training on one core, the rival of all other strategies."""

from shoal.strategies.serial.settings import Serial as Serial
