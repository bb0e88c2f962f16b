"""What the machine gives to a loader: one file a group of checks."""
