"""What makes a batch where Python reads, and the native core's pool."""
