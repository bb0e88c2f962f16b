"""What brings tasks to workers and batches back, one file each, and which of them makes a pass."""
