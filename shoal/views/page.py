"""Turns sections into a page: one HTML file, or Markdown with its pictures beside it.

The page has no script, no font and no address outside: it can be mailed, and looks the same in
ten years. Light and dark follow the reader; tables and pictures scroll on a narrow screen. All
text is escaped here, once.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from shoal.files import replace_file
from shoal.views import format


@dataclass(frozen=True, slots=True)
class TableSection:
    """Cells as they are shown; numbers are aligned to the right."""

    heads: list[str]
    rows: list[list[str]]
    caption: str = ""


def compact(table: TableSection) -> TableSection:
    """The table without constant columns, which move to the caption."""
    if len(table.rows) < 2:
        return table
    same = [at for at in range(1, len(table.heads)) if len({row[at] for row in table.rows}) == 1]
    kept = [at for at in range(len(table.heads)) if at not in same]
    facts = [f"{table.heads[at]} {table.rows[0][at]}" for at in same if table.rows[0][at] != "-"]
    caption = f"{table.caption} In all rows: {', '.join(facts)}.".strip() if facts else table.caption
    return TableSection([table.heads[at] for at in kept], [[row[at] for at in kept] for row in table.rows], caption)


@dataclass(frozen=True, slots=True)
class PictureSection:
    """An SVG with a description in words, for screen readers."""

    name: str  # of its file beside a Markdown report, without suffix
    svg: bytes
    caption: str


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, and below it paragraphs, pictures and tables, in this order."""

    title: str
    words: list[str] = field(default_factory=list)  # paragraphs
    pictures: list[PictureSection] = field(default_factory=list)
    tables: list[TableSection] = field(default_factory=list)


_THEME = {  # colours of the page by name: light, dark
    "paper": ("#ffffff", "#16191d"),
    "ink": ("#2b2b2b", "#e4e4e2"),
    "soft": ("#5c5c5c", "#a9adb3"),
    "grid": ("#dddddd", "#363b42"),
    "pale": ("#b4b4b4", "#6b727c"),
    "blue": ("#0072b2", "#4aa8e0"),
    "red": ("#d55e00", "#f0813a"),
    "green": ("#007a5a", "#3fbf93"),
    "purple": ("#a0447c", "#e08fc0"),
    "back": ("#f4f5f6", "#1f2328"),
}
# Colours of the pictures by their names in the page.
_COLORS = {light: name for name, (light, _) in _THEME.items()} | {"#bbbbbb": "pale", "#b0b0b0": "grid"}
_COLORS |= dict.fromkeys(("#000000", "#444444", "#262626"), "ink")

LONG = 40  # characters of a cell that may be broken into lines
_STYLE = """
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.55 system-ui,-apple-system,"Segoe UI",sans-serif}
main{max-width:78rem;margin:0 auto;padding:1.5rem 1rem 4rem}
h1{font-size:1.5rem;line-height:1.25;margin:.5rem 0 1rem;overflow-wrap:anywhere}
h2{font-size:1.15rem;margin:2.4rem 0 .5rem;padding-top:.8rem;border-top:1px solid var(--grid);overflow-wrap:anywhere}
p{max-width:44rem;margin:.6rem 0;overflow-wrap:anywhere}
.seen{background:var(--back);border-left:4px solid var(--blue);padding:.4rem 1rem;max-width:46rem}
nav{font-size:.9rem;color:var(--soft)} nav a{color:inherit;margin-right:.9rem;white-space:nowrap}
figure{margin:1rem 0} figure .box{margin:0} figure svg{display:block;width:100%;height:auto;fill:currentColor}
figure svg text{font-family:system-ui,-apple-system,"Segoe UI",sans-serif!important}
figcaption,.cap{font-size:.88rem;color:var(--soft);text-align:left;padding:.2rem 0;max-width:44rem}
.cap{margin:1rem 0 0}
.box{overflow-x:auto;margin:.2rem 0 1rem;max-width:100%}
table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .7rem;text-align:left;border-bottom:1px solid var(--grid);vertical-align:top}
th:first-child,td:first-child{padding-left:0} th{font-weight:600;color:var(--soft);vertical-align:bottom}
td{white-space:nowrap} td.w{white-space:normal;min-width:16rem;max-width:34rem} td.n,th.n{text-align:right}
footer{margin-top:3rem;font-size:.85rem;color:var(--soft)}
@media print{main{max-width:none} h2,figure,tr{break-inside:avoid}}
"""


def page(title: str, sections: Sequence[Section], foot: str = "") -> str:
    named = [(f"s{number}-{_file(section.title)}", section) for number, section in enumerate(sections)]
    links = " ".join(f'<a href="#{name}">{_text(section.title)}</a>' for name, section in named)
    body = "\n".join(_section(name, section) for name, section in named)
    light, dark = (";".join(f"--{name}:{colors[at]}" for name, colors in _THEME.items()) for at in (0, 1))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{_text(title)}</title>\n<style>\n:root{{color-scheme:light dark;{light}}}\n"
        f"@media (prefers-color-scheme:dark){{:root{{{dark}}}}}{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{_text(title)}</h1>\n<nav>{links}</nav>\n{body}\n<footer>{_text(foot)}</footer>\n</main>\n</body>\n</html>\n"
    )


def markdown(title: str, sections: Sequence[Section], pictures: str, foot: str = "") -> str:
    """The page in Markdown; ``pictures`` is the folder of its pictures."""
    parts = [f"# {_plain(title)}"]
    at = 0
    for section in sections:
        parts.append(f"## {_plain(section.title)}")
        parts += [_plain(paragraph) for paragraph in section.words]
        for one in section.pictures:
            at += 1
            parts.append(f"![{_plain(one.caption)}]({pictures}/{at}-{_file(one.name)}.svg)")
        parts += [_rows(table) for table in section.tables]
    return "\n\n".join([*parts, *([_plain(foot)] if foot else [])]) + "\n"


def write_html(path: Path, title: str, sections: Sequence[Section], foot: str = "") -> None:
    replace_file(path, page(title, sections, foot).encode("utf-8", "replace"))


def write_markdown(path: Path, title: str, sections: Sequence[Section], foot: str = "") -> None:
    """Writes the pictures first: the page never refers to one that is missing."""
    folder = path.with_name(f"{path.stem}-pictures")
    folder.mkdir(exist_ok=True)
    every = [one for section in sections for one in section.pictures]
    for at, one in enumerate(every, 1):  # names may be equal
        replace_file(folder / f"{at}-{_file(one.name)}.svg", one.svg)
    replace_file(path, markdown(title, sections, folder.name.replace(" ", "%20"), foot).encode("utf-8", "replace"))


def _section(name: str, section: Section) -> str:
    seen = ' class="seen"' if "findings" in section.title.lower() else ""
    said = "\n".join(f"<p>{_text(paragraph)}</p>" for paragraph in section.words)
    parts = [f'<section id="{name}">\n<h2>{_text(section.title)}</h2>', f"<div{seen}>\n{said}\n</div>" if said else ""]
    for number, one in enumerate(section.pictures):
        parts.append(f'<figure>\n<div class="box">{inline(one, f"{name}-{number}")}</div>')
        parts.append(f"<figcaption>{_text(one.caption)}</figcaption>\n</figure>")
    parts += [_table(table) for table in section.tables]
    return "\n".join([*(part for part in parts if part), "</section>"])


def inline(one: PictureSection, name: str) -> str:
    """An SVG as part of a page, with ids of its own, the page's colours, and its box's size."""
    drawing = one.svg.decode("utf-8", "replace")
    drawing = drawing[max(0, drawing.find("<svg")) :]
    head, close, rest = drawing.partition(">")
    # Of fixed size: readable text, scrolled on a narrow screen, never enlarged.
    found = re.search(r'viewBox="[-\d.]+ [-\d.]+ (\d+)', head)
    points = int(found.group(1)) if found else 460
    head = re.sub(r'\s(?:width|height)="[^"]*"', "", head)
    head += f' style="min-width:{1.2 * points:.0f}px;max-width:{1.53 * points:.0f}px"'
    rest = re.sub(r"<metadata>.*?</metadata>", "", rest, flags=re.DOTALL)
    rest = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", rest)
    rest = re.sub(r"#[0-9a-fA-F]{6}\b", _color, rest)
    return f'{head} role="img" aria-label="{_text(one.caption)}"{close}{rest.strip()}'


def _color(found: re.Match[str]) -> str:
    name = _COLORS.get(found.group().lower())
    return found.group() if name is None else f"var(--{name},{found.group()})"


def _table(table: TableSection) -> str:
    right = _numeric(table)
    caption = f'<p class="cap">{_text(table.caption)}</p>\n' if table.caption else ""
    heads, *rows = (
        "".join(_cell(tag, cell, right[at]) for at, cell in enumerate(row))
        for tag, row in [("th", table.heads), *(("td", row) for row in table.rows)]
    )
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    inside = f"<thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody>"
    return f'{caption}<div class="box" tabindex="0"><table>{inside}</table></div>'


def _cell(tag: str, text: str, right: bool) -> str:
    kind = ' class="n"' if right else ' class="w"' if tag == "td" and len(text) > LONG else ""
    return f"<{tag}{kind}>{_text(text)}</{tag}>"


def _text(text: str) -> str:
    return html.escape(format.clean(text), quote=True)


def _numeric(table: TableSection) -> list[bool]:
    """The numeric columns: all non-empty cells begin with a digit."""
    columns = zip_longest(table.heads, *table.rows, fillvalue="")
    told = [[cell for cell in cells if cell not in ("", "-")] for _, *cells in columns]
    return [bool(cells) and all(re.match(r"[-+−<]?[\d.]", one) and len(one) < 32 for one in cells) for cells in told]


def _file(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60] or "picture"


def _plain(text: str) -> str:
    """Escape a text, so that it makes no tag, link, table or heading."""
    escaped = re.sub(r"([\\`*_\[\]<>|#~])", r"\\\1", format.clean(text))
    return re.sub(r"&(?=#?\w+;)", "&amp;", escaped)


def _rows(table: TableSection) -> str:
    right = _numeric(table)
    heads = [*table.heads, *[""] * (len(right) - len(table.heads))]
    lines = [f"| {' | '.join(map(_plain, cells))} |" for cells in (heads, *table.rows)]
    lines.insert(1, "|" + "|".join("---:" if one else "---" for one in right) + "|")
    return (f"{_plain(table.caption)}\n\n" if table.caption else "") + "\n".join(lines)
