"""Batch memory: blocks that are used again, and memory that processes share, each with leases on it."""
