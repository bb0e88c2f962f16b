"""What a newcomer meets first is true: the table of tests, the issue templates, how to cite."""

from __future__ import annotations

import re

import pytest

from tests.pages import ROOT, rows_of, text_of

TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))


def test_every_folder_of_the_package_has_its_first_tests() -> None:
    rows = rows_of(ROOT / "CONTRIBUTING.md", "what you change")
    changed = " ".join(row[0] for row in rows)
    folders = [path.name for path in (ROOT / "src" / "penstock").iterdir() if (path / "__init__.py").exists()]
    assert len(folders) > 10
    assert [name for name in folders if f"`{name}/`" not in changed] == []
    named = re.findall(r"`(tests/[^`]*)`", " ".join(row[1] for row in rows))
    assert [name for name in named if not (ROOT / name).exists()] == []
    assert all(re.fullmatch(r"\d+", row[2]) for row in rows)


def test_the_version_to_cite_is_the_packages() -> None:
    citation, project = text_of(ROOT / "CITATION.cff"), text_of(ROOT / "pyproject.toml")
    for field in ("version", "license"):
        found = re.search(rf'^{field} = "(.*)"$', project, re.MULTILINE)
        assert found is not None and f"\n{field}: {found[1]}\n" in citation


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.stem)
def test_an_issue_template_asks_for_what_is_needed(template) -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: pip install pyyaml")
    form = yaml.safe_load(text_of(template))
    assert form["name"] and form["description"]
    fields = {field["id"]: field for field in form["body"] if field["type"] != "markdown"}
    assert len(fields) >= 4 and "explain" in fields
    assert "penstock --version" in fields["version"]["attributes"]["label"]
    assert fields["version"]["validations"]["required"]


def test_there_is_a_template_for_bugs_wrong_data_and_slow_loops() -> None:
    assert [path.stem for path in TEMPLATES] == ["bug", "slow", "wrong_data"]
