"""What was handed out, and how a pass goes on from there; which samples are bad."""
