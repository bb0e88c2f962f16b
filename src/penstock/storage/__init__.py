"""Where bytes come from: packed shards in local folders, object stores, and the cache of shards from these."""
