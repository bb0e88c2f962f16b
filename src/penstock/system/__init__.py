"""What this process may use: CPUs, memory, the cache folder, random generators."""
