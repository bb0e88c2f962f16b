"""What is known about a job that reads data: readers of what observers of its loaders are told."""
