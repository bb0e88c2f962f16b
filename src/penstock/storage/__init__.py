"""Where bytes come from: packed shards in local folders."""
