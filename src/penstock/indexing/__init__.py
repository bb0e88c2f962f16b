"""Users' datasets whose `__getitem__` only indexes what they hold: read once, and run for whole batches."""
