"""Machines beyond this one: a Ray cluster, who of it works on what, and the connections to them."""
