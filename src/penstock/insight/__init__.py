"""What a user is shown of a loader: batches as pictures, and its counters as metrics of other tools."""
