"""The docs list every row once, and everything that they point at exists."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = {"S0": 15, "S1": 31, "S2": 13, "S3": 14, "S4": 31}
KINDS = {"ALG", "PAR", "CAP", "EXP", "PLT", "NUM", "QST", "PLT/EXP", "EXP/PLT", "-"}
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/**/*.md", "*s/README.md")
    for path in ROOT.glob(pattern)
)


def seeds() -> list[list[str]]:
    """The cells of every row of docs/results/seeds.md."""
    lines = (ROOT / "docs/results/seeds.md").read_text().splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if re.match(r"\| S\d-", line)]


def paths(text: str) -> list[str]:
    """The words in backticks that look like a path of the repository.

    The name of a test after ``::`` is cut off.
    """
    quoted = re.findall(r"`([^`]+)`", text)
    return [word.split("::")[0] for word in quoted if " " not in word and ("/" in word or "." in word)]


def links(text: str) -> list[str]:
    """Targets of markdown links that stay inside the repository; code is ignored."""
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)\s]+)[^)]*\)", prose)
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def anchors(text: str) -> set[str]:
    """The anchors of all headings, as GitHub derives them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def lines_of_prose(text: str) -> list[str]:
    """Lines that are neither code, table, picture nor heading."""
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return [line for line in prose.splitlines() if not line.startswith(("|", "    ", "![", "#", "<"))]


def test_every_row_of_the_seeds_is_listed_once_and_in_order() -> None:
    expected = [f"{seed}-{number:02}" for seed, count in ROWS.items() for number in range(1, count + 1)]
    assert [row[0] for row in seeds()] == expected


def test_every_row_says_what_it_is_and_what_shows_it() -> None:
    for row in seeds():
        assert len(row) == 4, row
        assert row[1] in KINDS, row
        assert all(row), row


def test_what_shows_a_row_exists() -> None:
    for row in seeds():
        for path in paths(row[3]):
            assert (ROOT / path).exists(), f"{row[0]}: no {path} in the repository"


def test_a_test_that_shows_a_row_is_in_its_file() -> None:
    for row in seeds():
        for path, name in re.findall(r"`([^`:]+)::(\w+)", row[3]):
            assert f"def {name}(" in (ROOT / path).read_text(), f"{row[0]}: no {name} in {path}"


def test_tests_that_show_a_fault_exist() -> None:
    tests = {path.relative_to(ROOT).as_posix(): path.read_text() for path in (ROOT / "tests").rglob("*.py")}
    text = (ROOT / "docs/guarantees/faults.md").read_text()
    for path in re.findall(r"tests/[\w/]+\.py|test_\w+\.py", text):
        assert any(one.endswith(path) for one in tests), f"faults.md names {path}"
    for name in re.findall(r"\b(test_\w+)(?!\w*\.py|_\*)\b", re.sub(r"test_\w+\.py", "", text)):
        assert any(f"def {name}" in source for source in tests.values()), f"faults.md names {name}"


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for link in links((ROOT / page).read_text()):
        target, _, anchor = link.partition("#")
        path = (ROOT / page).parent / target if target else ROOT / page
        assert path.exists(), f"{page} links to {target}"
        if anchor:
            assert anchor in anchors(path.read_text()), f"{page} links to {link}: no such heading"


@pytest.mark.parametrize("page", PAGES)
def test_lines_of_prose_have_at_most_100_columns(page: str) -> None:
    for line in lines_of_prose((ROOT / page).read_text()):
        assert len(line) <= 100, f"{page}: {len(line)} columns: {line[:60]}"


def test_every_page_is_reachable_from_the_index() -> None:
    """A page that no other page links to is lost.

    A link to the folder is enough for decisions and generated pages.
    """
    found, open_pages = set(), [ROOT / "docs/index.md"]
    while open_pages:
        page = open_pages.pop()
        if page in found or page.suffix != ".md":
            continue
        found.add(page)
        targets = (link.partition("#")[0] for link in links(page.read_text()))
        open_pages += [(page.parent / target).resolve() for target in targets if target]
    pages = {path for path in (ROOT / "docs").rglob("*.md") if "decisions" not in path.parts}
    assert not pages - found, sorted(path.name for path in pages - found)


def test_the_readme_has_at_most_150_lines() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_the_glossary_has_at_most_60_words_each_once_and_in_order() -> None:
    words = re.findall(r"^\| (?!word)([^|]+?) \|", (ROOT / "docs/glossary.md").read_text(), flags=re.MULTILINE)
    assert 30 <= len(words) <= 60
    assert words == sorted(set(words))


def test_decisions_are_numbered_without_a_gap_and_give_context_choice_and_cost() -> None:
    pages = sorted((ROOT / "docs/internals/decisions").glob("*.md"))
    assert [int(page.name[:4]) for page in pages] == list(range(1, len(pages) + 1))
    for page in pages:
        for word in ("Context", "Choice", "Cost"):
            assert word in page.read_text(), f"{page.name} has no {word}"


def test_the_reference_is_what_the_code_says(tmp_path: Path) -> None:
    """The pages are written in a new process: other tests register strategies in this one.

    They register filters, too.
    """
    script = ROOT / "docs/make_reference.py"
    ran = subprocess.run([sys.executable, script, tmp_path], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    for page in sorted(tmp_path.iterdir()):
        written = (ROOT / "docs/reference" / page.name).read_text()
        assert written == page.read_text(), f"docs/reference/{page.name} is old: run python docs/make_reference.py"


def methods() -> dict[str, set[str]]:
    """The methods of every class of the package, those of its base classes included."""
    own: dict[str, set[str]] = {}
    bases: dict[str, list[str]] = {}
    for path in sorted((ROOT / "shoal").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                own[node.name] = {
                    one.name for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
                }
                bases[node.name] = [one.id for one in node.bases if isinstance(one, ast.Name)]
    return {name: own[name].union(*(own.get(base, set()) for base in bases[name])) for name in own}


def test_what_the_journey_names_exists() -> None:
    """Every `Class` and `Class.method` that the journey names exists.

    The files that it names are checked together with those of the other internals.
    """
    text = (ROOT / "docs/internals/journey.md").read_text()
    assert len(re.findall(r"`shoal/[\w/]+\.py`", text)) >= 40
    known = methods()
    named = re.findall(r"`([A-Z]\w+)(?:\.(\w+))?(?:\(.*?\))?`", text)
    assert len(named) >= 40
    for kind, method in named:
        assert kind in known, f"the journey names {kind}"
        assert not method or method in known[kind], f"the journey names {kind}.{method}"


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("docs/internals/")])
def test_modules_that_the_internals_name_exist(page: str) -> None:
    for path in re.findall(r"`([\w/]+\.py)`", (ROOT / page).read_text()):
        assert (ROOT / "shoal" / path).exists() or (ROOT / path).exists(), f"{page} names {path}"


def test_links_in_code_and_to_other_sites_are_left_alone() -> None:
    text = "[a](b.md#part) `[c](d.md)` [e](https://example.org/f.md) [g](#h)\n```\n[i](j.md)\n```"
    assert links(text) == ["b.md#part", "#h"]


def test_a_command_in_backticks_is_no_path() -> None:
    assert paths("`shoal bench store`, `tests/test_tiny.py::test_x`, `sum`") == ["tests/test_tiny.py"]
