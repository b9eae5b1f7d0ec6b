"""The server side of the store: a table's segments, as primary or as backup."""
