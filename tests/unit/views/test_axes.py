"""All drawing uses one module for numbers, colours, legends and scales."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.views import axes as draw

pytest.importorskip("matplotlib")


def panel() -> Any:
    return draw.canvas(3.0).subplots()


def test_numbers_have_thousands_separators_and_no_exponents() -> None:
    assert [draw.number(one) for one in (400_000, 1_500_000, 2_000, 999, 0.05, 0)] == [
        "400,000", "1,500,000", "2,000", "999", "0.05", "0",
    ]  # fmt: skip
    axes = panel()
    axes.plot([0, 1], [0.42, 0.5])
    draw.numbers(axes.yaxis)
    shown = [label.get_text() for label in axes.get_yticklabels()]
    assert {len(text.partition(".")[2]) for text in shown} == {2}  # 0.40, not 0.4 beside 0.42


def test_many_lines_have_colours_of_their_own() -> None:
    for many in (3, len(draw.SERIES), 15):
        assert len({str(color) for color in draw.colors(many)}) == many


def test_a_legend_has_at_most_eight_entries_and_counts_the_rest() -> None:
    axes = panel()
    for number in range(15):
        axes.plot([0, 1], [0, number], label=f"$line {number}")
    made = draw.legend(axes)
    assert made is not None
    shown = [text.get_text() for text in made.get_texts()]
    assert len(shown) == draw.ENTRIES and shown[0] == "$line 0" and shown[-1] == "and 8 more"
    assert draw.legend(panel()) is None  # nothing is drawn


def test_only_positive_values_over_a_wide_range_are_drawn_on_a_log_axis() -> None:
    for values, scale in (([0.03, 2.5], "log"), ([0.3, 0.7], "linear"), ([0.0, 9.0], "linear"), ([], "linear")):
        axes = panel()
        axes.plot(range(len(values)), values)
        assert draw.log_if_steep(axes.yaxis, values) == (scale == "log")
        assert axes.get_yscale() == scale
        axes.figure.draw_without_rendering()
        assert not any("10^" in label.get_text() for label in axes.get_yticklabels())


def test_a_level_to_compare_with_is_named_at_its_line() -> None:
    axes = panel()
    axes.plot([0, 1], [0.3, 0.5])
    draw.reference(axes, 0.42, "target 0.42", ":")
    assert [text.get_text() for text in axes.texts] == ["target 0.42"]
    assert list(axes.lines[-1].get_ydata()) == [0.42, 0.42]


def test_long_labels_are_wrapped_to_their_panel() -> None:
    axes = panel()
    draw.y_label(axes, "mean staleness: pushes between a pull and its push")
    assert "\n" in axes.get_ylabel()
    draw.column_names(axes, range(6), [f"a rather long name {number}" for number in range(6)])
    assert {label.get_rotation() for label in axes.get_xticklabels()} == {20.0}
    draw.column_names(axes, range(3), ["1", "2", "3"])
    assert {label.get_rotation() for label in axes.get_xticklabels()} == {0.0}
