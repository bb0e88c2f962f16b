"""A contact sheet as one HTML page, which holds its pictures and refers to nothing outside of it.

Texts are escaped, and the page's own policy lets a browser load nothing and run no script, whatever an ID holds.
"""

from __future__ import annotations

import base64
import html
import io

from penstock.insight.cells import Cell, Picture, Sheet
from penstock.insight.drawing import SIDE, reduced, reduction

_SMALL = 96  # pixels of a side up to which a browser enlarges a picture

_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --ink: #1b1b1b; --faint: #5c5c5c; --paper: #f6f6f6; --card: #fff; --warn: #b00020 }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ink: #ececec; --faint: #a8a8a8; --paper: #161616; --card: #222; --warn: #ff8a80 }}
}}
body {{ margin: 1rem; background: var(--paper); color: var(--ink); font: 13px/1.4 system-ui, sans-serif }}
h1 {{ font-size: 1.2rem; margin: 0 0 .3rem; overflow-wrap: anywhere }}
header p {{ margin: 0; color: var(--faint); overflow-wrap: anywhere }}
main {{ display: grid; gap: .6rem; margin-top: 1rem; grid-template-columns: repeat({columns}, max-content) }}
figure {{ margin: 0; padding: .5rem; background: var(--card); border-radius: 4px }}
figure img {{ image-rendering: pixelated; margin-right: .4rem; vertical-align: top }}
figcaption {{ max-width: 32rem; width: 0; min-width: 100%; overflow-wrap: anywhere }}
figcaption.text {{ width: 24rem; min-width: 0 }}
figcaption p {{ margin: 0; color: var(--faint) }}
figcaption p.id {{ color: var(--ink); font-weight: 600; min-width: 8rem }}
figcaption p.warning {{ color: var(--warn) }}
</style>
</head>
"""


def page_of(sheet: Sheet, side: int = SIDE) -> str:
    """Return a sheet as an HTML page. side: the most pixels of a side of a picture; larger pictures are reduced."""
    title = html.escape(sheet.title)
    header = [f"<h1>{title}</h1>", *(f"<p>{html.escape(note)}</p>" for note in (*sheet.notes, *reduction(sheet, side)))]
    figures = [_figure(sheet, cell, side) for cell in sheet.cells]
    body = [f"<header>\n{_joined(header)}\n</header>", f"<main>\n{_joined(figures)}\n</main>"]
    return f"{_HEAD.format(title=title, columns=sheet.columns)}<body>\n{_joined(body)}\n</body>\n</html>\n"


def _figure(sheet: Sheet, cell: Cell, side: int) -> str:
    pictures = "".join(_image(cell, picture, side) for picture in cell.pictures)
    lines = [f'<p class="id">{html.escape(cell.id)}</p>']
    for text, warns in sheet.captions(cell):
        kind = ' class="warning"' if warns else ""
        lines.append(f"<p{kind}>{html.escape(text)}</p>")
    kind = "" if cell.pictures else ' class="text"'
    return f"<figure>{pictures}<figcaption{kind}>{''.join(lines)}</figcaption></figure>"


def _image(cell: Cell, picture: Picture, side: int) -> str:
    shown = reduced(picture.pixels, side)
    file = io.BytesIO()
    shown.save(file, "PNG")
    zoom = max(1, _SMALL // max(shown.size))
    data = base64.b64encode(file.getvalue()).decode("ascii")
    name = html.escape(f"{cell.id} {picture.name}".strip())
    return (
        f'<img src="data:image/png;base64,{data}" alt="{name}" title="{name}" '
        f'width="{shown.width * zoom}" height="{shown.height * zoom}">'
    )


def _joined(lines: list[str]) -> str:
    return "\n".join(lines)
