"""The recipe for conda, the bill of what a wheel carries, and the release workflow agree with pyproject.toml."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import jinja2
import pytest

from tests.pages import ROOT, text_of

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed: pip install pyyaml")
tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has no tomllib")
PROJECT: Any = tomllib.loads(text_of(ROOT / "pyproject.toml"))
#: What conda-forge calls a distribution, where the name differs.
CONDA = {"torch": "pytorch"}
ORDER = ["package", "source", "build", "requirements", "test", "about"]


@pytest.fixture
def recipe() -> Any:
    functions = {"compiler": "{}_compiler".format, "stdlib": "{}_stdlib".format, "PYTHON": "python"}
    text = jinja2.Template(text_of(ROOT / "tools" / "conda" / "meta.yaml"), undefined=jinja2.StrictUndefined)
    return yaml.safe_load(text.render(functions, target_platform="linux-aarch64"))


def test_the_recipe_says_what_the_project_says(recipe: Any) -> None:
    project = PROJECT["project"]
    assert recipe["package"] == {"name": project["name"], "version": project["version"]}
    assert (recipe["about"]["summary"], recipe["about"]["license"]) == (project["description"], project["license"])
    assert recipe["about"]["license_file"] in project["license-files"]
    needed = [one.partition(";")[0].strip() for one in project["dependencies"]]
    needed = [re.sub(r"^[\w-]+", lambda name: CONDA.get(name[0], name[0]) + " ", one) for one in needed]
    assert recipe["requirements"]["run"] == ["python", *needed]
    build = {re.sub(r"^[\w-]+", r"\g<0> ", one) for one in PROJECT["build-system"]["requires"]}
    assert build <= set(recipe["requirements"]["host"])
    assert recipe["build"]["entry_points"] == [" = ".join(pair) for pair in project["scripts"].items()]


def test_the_recipe_keeps_the_conventions_of_conda_forge(recipe: Any) -> None:
    assert list(recipe) == ORDER and recipe["build"]["number"] == 0
    assert recipe["requirements"]["host"][:2] == ["python", "pip"] and "pip check" in recipe["test"]["commands"]
    assert {"c_stdlib", "cxx_compiler"} <= set(recipe["requirements"]["build"])
    for line in (*recipe["requirements"]["host"], *recipe["requirements"]["run"]):
        assert re.fullmatch(r"[a-z0-9-]+( >=[0-9.]+)?", line), line


def wheel(folder: Path, library: str, data: bytes) -> Path:
    path = folder / "penstock_loader-0.2.0-cp312-abi3-manylinux_2_28_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("penstock/_native.abi3.so", b"")
        archive.writestr(f"penstock_loader.libs/{library}", data)
        lines = "Metadata-Version: 2.4\nName: penstock-loader\nVersion: 0.2.0\nLicense-Expression: Apache-2.0\n"
        archive.writestr("penstock_loader-0.2.0.dist-info/METADATA", lines)
    return path


def test_a_bill_names_each_library_with_its_version(tmp_path: Path) -> None:
    path = wheel(tmp_path, "libjpeg-0a1b.so.62.4.0", b"\0libjpeg-turbo version 3.1.2 (build 20250901)\0")
    subprocess.run([sys.executable, ROOT / "tools" / "sbom.py", path], check=True)
    bill = json.loads(path.with_name(f"{path.name}.cdx.json").read_text("utf-8"))
    assert (bill["bomFormat"], bill["specVersion"], bill["metadata"]["component"]["version"]) == (
        "CycloneDX",
        "1.6",
        "0.2.0",
    )
    assert [(one["name"], one.get("version")) for one in bill["components"]] == [
        ("nanobind", None),
        ("libjpeg-turbo", "3.1.2"),
    ]
    assert {one["ref"] for one in bill["dependencies"]} == {"penstock-loader", "nanobind", "libjpeg-turbo"}


def test_a_bill_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    path = wheel(tmp_path, "libother-0a1b.so.1", b"")
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "sbom.py", path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and "carries penstock_loader.libs/libother-0a1b.so.1, whose name" in done.stderr


def test_the_release_publishes_only_what_is_attested() -> None:
    workflow = yaml.safe_load(text_of(ROOT / ".github" / "workflows" / "release.yml"))
    jobs = workflow["jobs"]
    assert workflow["permissions"] == {} and set(jobs["attest"]["needs"]) == {"wheels", "sdist"}
    assert jobs["publish"]["needs"] == "attest" and jobs["publish"]["permissions"] == {"id-token": "write"}
    used = [step.get("uses", "").partition("@")[0] for step in jobs["attest"]["steps"]]
    assert "actions/attest-build-provenance" in used
    assert [name for name, job in jobs.items() if "id-token" in job["permissions"]] == ["attest", "publish"]
