"""The ledger: a file that records which samples each step of a run was given, as a hash chain."""

from penstock.state.ledger.comparing import STEP_FACTS, Comparison, Verdict, compare
from penstock.state.ledger.ids import ids_bytes
from penstock.state.ledger.reading import LedgerFile, Record, read, records
from penstock.state.ledger.writing import Ledger

__all__ = [
    "STEP_FACTS",
    "Comparison",
    "Ledger",
    "LedgerFile",
    "Record",
    "Verdict",
    "compare",
    "ids_bytes",
    "read",
    "records",
]
