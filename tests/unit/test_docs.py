"""The docs keep their promises: every row is there once, and what they point at exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = {"S0": 15, "S1": 31, "S2": 13, "S3": 14, "S4": 31}
KINDS = {"ALG", "PAR", "CAP", "EXP", "PLT", "NUM", "QST", "PLT/EXP", "EXP/PLT", "-"}
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/**/*.md")
    for path in ROOT.glob(pattern)
)


def seeds() -> list[list[str]]:
    """The cells of every row of docs/seeds.md."""
    lines = (ROOT / "docs/seeds.md").read_text().splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if re.match(r"\| S\d-", line)]


def paths(text: str) -> list[str]:
    """What stands in backticks and looks like a path of the repository, without a test's name behind it."""
    quoted = re.findall(r"`([^`]+)`", text)
    return [word.split("::")[0] for word in quoted if " " not in word and ("/" in word or "." in word)]


def links(text: str) -> list[str]:
    """Targets of markdown links that stay inside the repository; code is not looked at."""
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
    targets = re.findall(r"\]\(([^)\s]+)[^)]*\)", prose)
    return [target.split("#")[0] for target in targets if not re.match(r"[a-z]+:|#", target)]


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


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for target in links((ROOT / page).read_text()):
        assert (ROOT / page).parent.joinpath(target).exists(), f"{page} links to {target}"


def test_links_in_code_and_to_other_sites_are_left_alone() -> None:
    text = "[a](b.md#part) `[c](d.md)` [e](https://example.org/f.md) [g](#h)\n```\n[i](j.md)\n```"
    assert links(text) == ["b.md"]


def test_a_command_in_backticks_is_no_path() -> None:
    assert paths("`shoal bench store`, `tests/test_tiny.py::test_x`, `sum`") == ["tests/test_tiny.py"]
