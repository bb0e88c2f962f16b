"""The scoreboard of faults: a script for each row of docs/reliability.md.

`make faults` runs all rows in full and writes the page; `make test` runs a short form of each.
"""
