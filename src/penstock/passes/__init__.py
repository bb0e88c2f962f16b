"""A pass over the data: what it goes through and works with, and the iterator that hands out its batches."""
