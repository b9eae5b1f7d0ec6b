"""``shoal bench failover``: servers die, all segments accept pushes again.

Nothing is lost. How soon it happens is not tested here.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from benchmarks import failover
from benchmarks.failover import Results, Settings, measure
from shoal.cli.main import main
from shoal.errors import Invalid
from tests.support.warm_forkserver import offspring

pytestmark = pytest.mark.slow  # other tests cover the measured code


def test_killed_and_stopped_servers_are_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = set(offspring())
    monkeypatch.setattr(failover, "QUICK", Settings(megabytes=1, faults=2))
    command = ["bench", "failover", "--quick", "--kills", "2", "--stops", "1", "--json", str(tmp_path / "all.json")]
    told = CliRunner().invoke(main, command)
    assert told.exit_code == 0, told.output
    assert "killed" in told.output and "stopped" in told.output and "full copies s" in told.output
    assert set(offspring()) <= before
    found = msgspec.json.decode((tmp_path / "all.json").read_bytes(), type=Results)
    assert [fault.kind for fault in found.faults] == ["killed", "killed", "stopped"]
    assert found.segments == 24 and found.pushes > 20
    for fault in found.faults:
        assert fault.segments > 0 and 0 < fault.pushing <= fault.full and fault.back > 0


def test_what_cannot_be_survived_is_refused() -> None:
    with pytest.raises(Invalid, match="at least one fault"):
        measure(Settings(kills=0, stops=0))
    with pytest.raises(Invalid, match="nobody takes over"):
        measure(Settings(copies=1))
