"""Penstock loaders in the hands of other frameworks."""

from penstock.frameworks.accelerate import keep_loaders

__all__ = ["keep_loaders"]
