"""The rows of one table in memory, and the update rules that change them."""
