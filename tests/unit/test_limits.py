"""Every bound in one place, and one command that prints them."""

from __future__ import annotations

from click.testing import CliRunner

from shoal import limits
from shoal.cli import main


def test_shoal_limits_prints_every_bound_with_its_value() -> None:
    result = CliRunner().invoke(main, ["limits"])
    assert result.exit_code == 0
    bounds = {name for name in vars(limits) if name.isupper()} - {"MILLISECOND", "SECOND", "MB"}
    assert len(bounds) > 30
    printed = {line.split()[0] for line in result.output.splitlines() if line and line[0].isupper() and " = " in line}
    assert printed == bounds
    assert "HEARTBEAT = 500 ms" in result.output
    assert not [line for line in result.output.splitlines() if line.endswith("(")]  # a bound is a line


def test_bounds_agree_with_each_other() -> None:
    assert limits.HEARTBEAT < limits.SUSPECT_AFTER < limits.DEAD_AFTER
    assert limits.RESEND_FIRST < limits.RESEND_MOST < limits.SILENCE
    assert 3 * limits.NOTICE < limits.SILENCE  # three missed notices, and still time to ask
    assert limits.DENSE_SEGMENT_BYTES <= limits.FRAME_BYTES <= limits.CLIENT_WINDOW  # a segment fits a message
    assert 4 * limits.WIDTH <= limits.FRAME_BYTES  # and so does the widest row
    assert limits.BUSY_RETRY < limits.RESEND_MOST
