"""What other frameworks are told, so that penstock loaders work in them."""

from penstock.frameworks.keeping import keep_loaders

__all__ = ["keep_loaders"]
