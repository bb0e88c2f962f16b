"""Where bytes come from, ahead of need: objects of object stores, and the local cache of whole shards."""
