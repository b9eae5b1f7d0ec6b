"""Every bound in one place, and one command that prints them."""

from __future__ import annotations

from click.testing import CliRunner

from shoal import limits
from shoal.cli import main


def test_shoal_limits_prints_every_bound_with_its_value() -> None:
    result = CliRunner().invoke(main, ["limits"])
    assert result.exit_code == 0
    printed = {name: value.replace(",", "") for name, value in (line.split() for line in result.output.splitlines())}
    bounds = {name: str(value) for name, value in vars(limits).items() if name.isupper()}
    assert len(bounds) > 30
    assert printed == bounds


def test_bounds_agree_with_each_other() -> None:
    assert limits.HEARTBEAT < limits.SUSPECT_AFTER < limits.DEAD_AFTER
    assert limits.RESEND_FIRST < limits.RESEND_MOST < limits.SILENCE
    assert 3 * limits.NOTICE < limits.SILENCE  # three missed notices, and still time to ask
    assert limits.DENSE_SEGMENT_BYTES <= limits.FRAME_BYTES <= limits.CLIENT_WINDOW  # a segment fits a message
    assert 4 * limits.WIDTH <= limits.FRAME_BYTES  # and so does the widest row
    assert limits.BUSY_RETRY < limits.RESEND_MOST
