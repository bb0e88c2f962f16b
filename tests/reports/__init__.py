"""Public reports of trouble with torch's loader, each reproduced by a script of our own: docs/public-reports.md.

`python -m tests.reports` runs all scripts with torch's loader and with Penstock's, each in a process of its own, and
writes the page; `make test` runs the part of each that must hold of Penstock's.
"""
