"""Reports: pytorch/pytorch#22924, pytorch/pytorch#11718, Project-MONAI/MONAI#883.

Ctrl-C in a loop with workers prints the traceback of each worker, or hangs.

The program gets KeyboardInterrupt within a second, workers end without a word, and nothing is left.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import Any

import penstock
from tests.reports.report import Found

PROGRAM = """
import signal, sys, time, torch, {module}
signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored where this is started

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 100_000
    def __getitem__(self, index):
        time.sleep(0.01)
        return index

for number, batch in enumerate({module}.DataLoader(Rows(), batch_size=4, num_workers=4)):
    if number == 3:
        print("begun", flush=True)
"""


def trouble(loader: Any, *, short: bool) -> Found:
    module = "penstock" if issubclass(loader, penstock.DataLoader) else "torch.utils.data"
    tries, lines = 1 if short else 5, 0
    for _ in range(tries):
        command = [sys.executable, "-c", PROGRAM.format(module=module)]
        with subprocess.Popen(command, stdout=-1, stderr=-1, text=True, start_new_session=True) as program:
            assert program.stdout is not None and program.stdout.readline() == "begun\n"
            time.sleep(0.2)
            os.killpg(program.pid, signal.SIGINT)
            try:
                _, text = program.communicate(timeout=20)
            except subprocess.TimeoutExpired:
                os.killpg(program.pid, signal.SIGKILL)
                text = "Traceback" * 10
        lines += text.count("Traceback") - 1
    return Found(lines, tries * 4, "workers that print a traceback of their own, or hang")
