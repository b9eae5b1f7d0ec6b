"""Made light for the road: what travels between clients and servers, with fewer keys, fewer values and fewer bytes."""
