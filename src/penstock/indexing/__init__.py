"""Datasets of a user's own whose `__getitem__` only indexes what they hold: read once, and run for whole batches."""
