"""Each public report is answered by Penstock's loader as its row says."""

from __future__ import annotations

import pytest

from tests.reports.report import LOADERS, Report, reports


@pytest.mark.parametrize("report", reports(), ids=lambda report: report.script.stem)
@pytest.mark.filterwarnings("ignore")
def test_is_answered(report: Report) -> None:
    found = report.module.trouble(LOADERS["penstock"], short=True)
    assert report.is_answered(found), str(found)
