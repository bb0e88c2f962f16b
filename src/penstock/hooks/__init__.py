"""Functions of other packages, answered natively with the same results where that is possible."""
