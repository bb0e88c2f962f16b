"""Who fills each batch by the plan: native threads, Python threads, worker processes, the caller's thread."""
