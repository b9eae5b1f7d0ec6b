"""What the test session itself is made of: how tests are kept apart, and in which tier each runs."""
