"""Pages of HTML, each by its template beside this file."""

from __future__ import annotations

from typing import Any

from jinja2 import Environment, PackageLoader

from penstock.showing import shown


def page_of(template: str, **values: Any) -> str:
    """Return a page. Markup in a value is text, and what is not printable becomes an escape."""
    environment = Environment(
        loader=PackageLoader("penstock.insight.templates", ""),
        autoescape=True,
        trim_blocks=True,
        finalize=lambda value: shown(value) if type(value) is str else value,
    )
    return environment.get_template(template).render(values)
