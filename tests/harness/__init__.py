"""The parts of the test session keep tests apart, and say in which tier each runs."""
