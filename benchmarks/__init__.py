"""Penstock, torch's loader, the bare native limit and the peers that install, side by side: one file per question."""
