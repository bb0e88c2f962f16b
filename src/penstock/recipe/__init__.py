"""What is done to a sample's bytes: torchvision's transforms, read into native steps."""
