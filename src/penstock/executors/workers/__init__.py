"""The workers of a pass: native threads, Python threads, and torch's processes. Nothing else starts any."""
