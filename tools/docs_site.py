"""What MkDocs adds to the pages of docs/: the home page, docstrings and types, llms.txt, and links out of docs/.

The home page is README.md. The API reference, api.md, has an example of each public name; the site adds the docstring
and the arguments with their types. Each page is also written as Markdown beside its HTML, and llms.txt lists these
files (llmstxt.org).
"""

from __future__ import annotations

import html
import inspect
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation, Section
from mkdocs.structure.pages import Page

import penstock
import penstock.frameworks
import penstock.insight
import penstock.insight.lint
import penstock.testing
from penstock import errors

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
HOME, API = "index.md", "api.md"
FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[([^\[\]]*)\]\(([^)\s]+)\)")
MODULES = (penstock, penstock.testing, penstock.frameworks, penstock.insight, penstock.insight.lint)
#: Methods and properties that the guides speak of.
MEMBERS = {
    "DataLoader": ("explain", "stats", "set_epoch", "padded", "state_dict", "load_state_dict", "ids", "batch_at"),
    "Feed": ("resolve",),
    "Mix": ("order", "sampler"),
    "Stats": ("verdict", "metrics"),
    "Weighted": ("balanced",),
}

#: The text of each page, by its path below docs/.
texts: dict[str, str] = {}
navigation: list[Navigation] = []


def on_files(files: Files, config: MkDocsConfig) -> Files:
    home = re.sub(r'\b(src|srcset)="docs/', r'\1="', (ROOT / "README.md").read_text(encoding="utf-8"))
    files.append(File.generated(config, HOME, content=home))
    return files


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> None:
    navigation[:] = [nav]


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    name = page.file.src_uri
    if name == API:
        markdown = with_signatures(markdown)
    if name.startswith(("start/", "from/")):
        page.meta["hide"] = ["toc"]  # room for two columns of code
    elif name == HOME:
        page.meta["hide"] = ["navigation"]
    parts = FENCE.split(markdown)
    texts[name] = "".join(
        part if place % 2 else LINK.sub(lambda found: linked(found, name, config.repo_url), part)
        for place, part in enumerate(parts)
    )
    # Lines of explain() and of messages are long: they wrap.
    return re.sub(r"^```text$", "``` { .text .message }", texts[name], flags=re.MULTILINE)


def linked(found: re.Match[str], page: str, repository: str | None) -> str:
    """Return a link of a page as the site has it: files beyond docs/ lie in the repository, and are named."""
    text, target = found.groups()
    if re.match(r"[a-z]+:|#", target):
        return found[0]
    file, _, anchor = target.partition("#")
    path = (ROOT if page == HOME else (DOCS / page).parent).joinpath(file).resolve()
    path = DOCS / HOME if path == ROOT / "README.md" else path
    if path.is_relative_to(DOCS):
        inside = Path(os.path.relpath(path, (DOCS / page).parent)).as_posix()
        return f"[{text}]({inside}{anchor and '#' + anchor})"
    name = path.relative_to(ROOT).as_posix()
    if repository:
        return f"[{text}]({repository.rstrip('/')}/blob/main/{name})"
    if text.isdigit():  # the number of a row, which has no room for the name of its script
        return text
    return f"`{name}`" if text.strip("`") == name else f"{text} (`{name}`)"


def on_post_build(config: MkDocsConfig) -> None:
    site = Path(config.site_dir)
    for name, text in texts.items():
        (site / name).write_text(text, encoding="utf-8")
    (site / "llms.txt").write_text("\n".join(listed(config)) + "\n", encoding="utf-8")


def listed(config: MkDocsConfig) -> Iterator[str]:
    """Yield the lines of llms.txt."""
    yield f"# {config.site_name}\n\n> {config.site_description}.\n"
    yield (
        "A program changes `from torch.utils.data import DataLoader` to `from penstock import DataLoader`, and keeps "
        "its datasets, transforms and arguments. `loader.explain()` says who reads the dataset, and why. "
        "`penstock run --compare train.py` measures the gain of an unchanged script."
    )
    for item in navigation[0].items:
        yield f"\n## {item.title}\n"
        for page in pages_of(item):
            yield f"- [{page.title}]({page.file.src_uri}): {first_sentence(texts[page.file.src_uri])}"


def pages_of(item: Any) -> Iterator[Page]:
    if isinstance(item, Section):
        for one in item.children:
            yield from pages_of(one)
    elif isinstance(item, Page):
        yield item


def first_sentence(text: str) -> str:
    """Return the first sentence of a page's first paragraph, without links."""
    for paragraph in FENCE.sub("", text).split("\n\n"):
        words = LINK.sub(r"\1", " ".join(paragraph.split()))
        if words and not words.startswith(("#", "|", "<", "-", "!")):
            return re.split(r"(?<=\.)\s", words)[0]
    return ""


# ---------------------------------------------------------------- signatures


def with_signatures(markdown: str) -> str:
    """Return the API reference with the docstring and arguments of each name before its example."""
    known = dict(documented())
    parts = re.split(r"^### `([\w.]+)`\n", markdown, flags=re.MULTILINE)
    made = [parts[0]]
    for name, text in zip(parts[1::2], parts[2::2], strict=True):
        level = "####" if "." in name else "###"
        made.append("\n".join(entry(name, known[name], level)) + "\n**Example.** " + text.lstrip("\n"))
    return "".join(made).replace("## Exceptions\n", "## Exceptions\n\n" + "\n".join(exceptions()) + "\n", 1)


def documented() -> Iterator[tuple[str, Any]]:
    """Yield the public names that are no exceptions, and the members that the guides speak of, with what they are."""
    for module in MODULES:
        for name in module.__all__:
            thing = getattr(module, name)
            if not (inspect.isclass(thing) and issubclass(thing, Exception)):
                yield name, thing
                yield from ((f"{name}.{one}", inspect.getattr_static(thing, one)) for one in MEMBERS.get(name, ()))


def exceptions() -> Iterator[str]:
    """Yield the lines of the table of exceptions."""
    yield "| exception | derived from | raised for |\n|---|---|---|"
    for name in errors.__all__:
        error = getattr(errors, name)
        bases = ", ".join(f"`{base.__name__}`" for base in error.__bases__)
        yield f"| `{name}` | {bases} | {' '.join((inspect.getdoc(error) or '').split())} |"


def entry(name: str, thing: Any, level: str) -> Iterator[str]:
    """Yield the heading, the arguments and the docstring of a name."""
    thing = thing.fget if isinstance(thing, property) else inspect.unwrap(getattr(thing, "__func__", thing))
    text, sections = parts_of(inspect.getdoc(thing) or "")
    yield f"{level} `{name}`\n\n{text}\n"
    signature = inspect.signature(thing)
    said = sections.pop("Args", {})
    otherwise = options() if thing is penstock.DataLoader else {}
    rows = [one for one in signature.parameters.values() if one.name not in ("self", "cls")]
    if rows:
        yield "| argument | type | default | meaning |\n|---|---|---|---|"
        for one in rows:
            stars = "*" * (one.kind is one.VAR_POSITIONAL) + "**" * (one.kind is one.VAR_KEYWORD)
            default = "" if stars else "required" if one.default is one.empty else code(repr(one.default))
            meaning = said.get(one.name) or otherwise.get(one.name, "")
            yield f"| `{stars}{one.name}` | {code(shown(one.annotation))} | {default} | {meaning} |"
        yield ""
    if inspect.isfunction(thing) and shown(signature.return_annotation) not in ("None", ""):
        yield f"Returns {code(shown(signature.return_annotation))}.\n"
    for title, items in sections.items():
        yield f"{title}:\n"
        yield from (f"- `{key}`: {words}" for key, words in items.items())
        yield ""


def options() -> dict[str, str]:
    """Return the sentence on each argument of the loader, from the page of options."""
    page = (DOCS / "options.md").read_text(encoding="utf-8")
    return dict(re.findall(r"^\| `(\w+)` \| [^|]* \| (.*) \|$", page, re.MULTILINE))


def shown(annotation: Any) -> str:
    if annotation is inspect.Signature.empty:
        return ""
    if isinstance(annotation, str):
        return annotation
    return getattr(annotation, "__forward_arg__", None) or inspect.formatannotation(annotation)


def code(text: str) -> str:
    """Return a code span that may stand in a table."""
    return f"<code>{html.escape(text, quote=False).replace('|', '&#124;')}</code>" if text else ""


def parts_of(doc: str) -> tuple[str, dict[str, dict[str, str]]]:
    """Return a docstring's prose, and its sections Args, Attributes, Raises: what each says of each name."""
    prose: list[str] = []
    sections: dict[str, dict[str, str]] = {}
    items: dict[str, str] | None = None
    keys: list[str] = []
    for line in doc.splitlines():
        if re.fullmatch(r"(Args|Attributes|Raises):", line):
            items, keys = sections.setdefault(line[:-1], {}), []
        elif items is not None and (found := re.match(r"    ([\w*, ]+): (.*)", line)):
            keys = [key.strip("* ") for key in found[1].split(",")]
            items.update(dict.fromkeys(keys, plain(found[2])))
        elif items is not None and line.startswith("    "):
            items.update({key: f"{items[key]} {plain(line.strip())}" for key in keys})
        elif line or items is None:
            items = None
            prose.append(plain(line))
    return "\n".join(prose).strip(), sections


def plain(line: str) -> str:
    """Return a line of a docstring as Markdown, with links to the guides that it names."""
    return re.sub(r"docs/([\w-]+\.md)", r"[\1](\1)", line.replace("``", "`").replace("|", "\\|"))
