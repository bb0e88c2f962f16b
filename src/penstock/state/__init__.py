"""What was handed out, and how a pass continues from there; which samples are bad."""
