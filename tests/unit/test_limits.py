"""All limits are in one module, and one command prints them."""

from __future__ import annotations

from click.testing import CliRunner

from shoal import limits
from shoal.cli.main import main
from shoal.timing import DEFAULT, TimingSettings


def test_shoal_limits_prints_every_bound_with_its_value() -> None:
    result = CliRunner().invoke(main, ["limits"])
    assert result.exit_code == 0
    bounds = {name for name in vars(limits) if name.isupper()} - {"MILLISECOND", "SECOND", "MB"}
    assert len(bounds) > 30
    lines = [line[2:] for line in result.output.splitlines() if line.startswith("  ")]
    printed = {line.split()[0] for line in lines if line[0].isupper() and " = " in line}
    assert printed == bounds
    assert "CLEAR_EVERY = 5 ms" in result.output
    timing = {line.split()[0] for line in lines if line.startswith("timing.")}
    assert timing == {f"timing.{name}" for name in TimingSettings.__struct_fields__}
    assert "timing.heartbeat = 500 ms" in result.output
    # No limit is split over two lines.
    assert not [line for line in result.output.splitlines() if line.endswith("(")]


def test_one_bound_is_found_by_its_name() -> None:
    one = CliRunner().invoke(main, ["limits", "frame_bytes"])
    assert (
        one.output
        == "\nWhat a message may be.\n  FRAME_BYTES = 64 MB  one array; larger pushes are split at segment boundaries\n"
    )
    none = CliRunner().invoke(main, ["limits", "frame_byts"])
    assert none.exit_code == 2 and "is FRAME_BYTES" in none.output


def test_bounds_agree_with_each_other() -> None:
    # A segment fits into one message.
    assert limits.DENSE_SEGMENT_BYTES <= limits.FRAME_BYTES <= limits.CLIENT_WINDOW
    assert 4 * limits.WIDTH <= limits.FRAME_BYTES  # the widest row fits, too
    assert DEFAULT.resend_most > limits.BUSY_RETRY
