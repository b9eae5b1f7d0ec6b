"""Pages need no other file, escape all text, and contain all sections."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from shoal.views.page import PictureSection, Section, TableSection, inline, markdown, page, write_html, write_markdown

EVIL = "<script>alert('1')</script> & \"quoted\" | *bold* [link](http://x) \x1b[31m\nnew"
SVG = (
    b'<?xml version="1.0"?>\n<!DOCTYPE svg>\n<svg width="10pt" height="5pt" viewBox="0 0 10 5" xmlns="http://www.w3.org/2000/svg" '
    b'xmlns:xlink="http://www.w3.org/1999/xlink"><metadata>who made it</metadata><defs><clipPath id="a1"/></defs>'
    b'<g id="g" clip-path="url(#a1)"><use xlink:href="#g" style="fill: #444444; stroke: #0072b2"/><text>hello</text></g></svg>'
)


class Tags(HTMLParser):
    """Records all tags in order, and those that are not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.open: list[str] = []
        self.ids: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.ids += [value or "" for name, value in attrs if name == "id"]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture
def sections() -> list[Section]:
    table = TableSection(["name", "seconds", EVIL], [[EVIL, "1.5", "x"], ["b", "-", "y"]], EVIL)
    return [Section(EVIL, [EVIL, "two"], [PictureSection("a b/c", SVG, EVIL)] * 2, [table]), Section("Last")]


def test_a_page_is_whole_and_nothing_in_it_is_a_tag_of_its_own(sections: list[Section]) -> None:
    text = page(EVIL, sections, EVIL)
    tags = Tags(text)
    assert tags.open == []
    assert "script" not in tags.seen and tags.seen.count("svg") == 2 and tags.seen.count("h2") == 2
    assert len(set(tags.ids)) == len(tags.ids)
    assert "\x1b" not in text


def test_a_page_needs_nothing_from_elsewhere(sections: list[Section]) -> None:
    text = page("title", [Section("one", ["words"], [PictureSection("p", SVG, "shown")])])
    addresses = set(re.findall(r'https?://[^"\s)<]+', text))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert not re.search(r"<(link|script|img|iframe)\b|@import|url\((?!#)", text)


def test_light_and_dark_follow_the_reader_and_narrow_screens_are_thought_of(sections: list[Section]) -> None:
    text = page("title", sections)
    assert "prefers-color-scheme:dark" in text and 'name="viewport"' in text
    assert text.count('<div class="box"') == 3 and ".box{overflow-x:auto" in text


def test_a_picture_keeps_its_ids_to_itself_and_takes_the_colours_of_the_page() -> None:
    drawing = inline(PictureSection("p", SVG, 'what "it" shows'), "s1-0")
    ElementTree.fromstring(drawing)
    assert 'id="s1-0-a1"' in drawing and "url(#s1-0-a1)" in drawing and 'xlink:href="#s1-0-g"' in drawing
    assert "fill: var(--ink,#444444); stroke: var(--blue,#0072b2)" in drawing
    assert 'width="' not in drawing and "min-width:" in drawing and "metadata" not in drawing
    assert 'role="img" aria-label="what &quot;it&quot; shows"' in drawing


def test_numbers_are_aligned_to_the_right(sections: list[Section]) -> None:
    text = page("title", sections)
    assert '<th class="n">seconds</th>' in text and '<td class="n">1.5</td>' in text
    assert "<th>name</th>" in text


def test_markdown_escapes_as_well(sections: list[Section]) -> None:
    text = markdown(EVIL, sections, "pictures")
    assert "\\<script\\>" in text and "\\[link\\]" in text and "\\*bold\\*" in text
    assert not re.search(r"(?<!\\)<script", text)
    (rows,) = [part for part in text.split("\n\n") if part.startswith("| name")]
    assert rows.splitlines()[1] == "|---|---:|---|"
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 4 for line in rows.splitlines())


def test_markdown_has_its_pictures_beside_it(tmp_path: Path, sections: list[Section]) -> None:
    write_markdown(tmp_path / "report.md", "title", sections)
    assert [path.name for path in sorted((tmp_path / "report-pictures").iterdir())] == ["1-a-b-c.svg", "2-a-b-c.svg"]
    assert (tmp_path / "report-pictures" / "2-a-b-c.svg").read_bytes() == SVG
    assert "](report-pictures/2-a-b-c.svg)" in (tmp_path / "report.md").read_text()


def test_a_page_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.html"
    write_html(path, "first", [])

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shoal.files.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_html(path, "second", [])
    assert "<title>first</title>" in path.read_text()
    assert list(tmp_path.iterdir()) == [path]


def test_no_sections_make_a_page_all_the_same() -> None:
    assert "<h1>empty</h1>" in page("empty", [])
