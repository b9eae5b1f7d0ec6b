"""What a report is made of, before anybody knows how it will look: sections of words, tables and pictures.

A run and a sweep each say theirs; a page in HTML or Markdown is made of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TableSection:
    """Cells as they are shown; numbers are aligned to the right."""

    heads: list[str]
    rows: list[list[str]]
    caption: str = ""


@dataclass(frozen=True, slots=True)
class PictureSection:
    """An SVG, and what it shows in words, for those who do not see it."""

    name: str  # of its file beside a Markdown report, without suffix
    svg: bytes
    caption: str


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what is under it, in this order: what is seen, in words; pictures; tables."""

    title: str
    words: list[str] = field(default_factory=list)  # paragraphs
    pictures: list[PictureSection] = field(default_factory=list)
    tables: list[TableSection] = field(default_factory=list)
