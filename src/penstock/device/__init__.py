"""What happens between a batch in host memory and the training step on a device."""
