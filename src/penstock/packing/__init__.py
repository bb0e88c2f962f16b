"""Datasets become packed shards, and shards files."""
