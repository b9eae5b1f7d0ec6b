"""``shoal bench bytes`` counts and draws the bytes that filters save.

How much they save on real rows is not tested here.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from benchmarks import bytes as module
from benchmarks.bytes import ALL, BLOCKS, FTRL, KKT, NONE, Results, Set, Settings
from shoal.cli.main import main

pytestmark = pytest.mark.slow  # other tests cover the measured code

SMALL = Settings(
    sets=(Set(data="rcv1"), Set(data="clicks", rows=2_000, passes=2.0, blocks=2, most=6.0, objective=None, violation=None)),
    how="threads", workers=1, servers=1,
)  # fmt: skip


def test_what_filters_save_is_counted_and_drawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "QUICK", SMALL)
    monkeypatch.delenv("SHOAL_DATA", raising=False)
    told = CliRunner().invoke(
        main,
        [
            "bench",
            "bytes",
            "--quick",
            "--only",
            "int8,delta,kkt,all together",
            "--json",
            str(tmp_path / "all.json"),
        ],
    )
    assert told.exit_code == 0, told.output
    assert "rcv1 is left out: set SHOAL_DATA" in told.output and "times fewer to servers" in told.output
    found = msgspec.json.decode((tmp_path / "all.json").read_bytes(), type=Results)
    by = {(case.solver, case.way.name): case for case in found.cases}
    assert list(by) == [
        *((FTRL, name) for name in (NONE, "delta", "int8", ALL)),
        *((BLOCKS, name) for name in (NONE, "delta", KKT, ALL)),
    ]
    for case in found.cases:
        none = by[case.solver, NONE]
        assert case.to_servers <= case.wire_to_servers and case.to_workers <= case.wire_to_workers
        assert case.way.name == NONE or case.to_servers < 0.95 * none.to_servers
    none = by[FTRL, NONE]
    assert 1 <= none.to_servers / none.plain_to_servers < 1.001  # one more byte for each array
    assert found.ratios(by[FTRL, "int8"])[1] == pytest.approx(4, rel=0.02)
    assert found.ratios(by[FTRL, ALL])[0] > 6
    plain, kkt = by[BLOCKS, NONE], by[BLOCKS, KKT]
    assert by[BLOCKS, "delta"].objective == plain.objective  # delta coding loses nothing
    assert kkt.skipped[-1] > 0.5 and kkt.objective == pytest.approx(plain.objective, rel=0.05)

    pytest.importorskip("matplotlib")
    again = ["bench", "bytes", "--from", str(tmp_path / "all.json"), "--picture", str(tmp_path / "bytes.png")]
    told = CliRunner().invoke(main, again)
    assert told.exit_code == 0 and "KKT leaves out" in told.output, told.output
    assert (tmp_path / "bytes.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_not_there_is_said() -> None:
    for given, said in ((["--data", "rvc1"], "no set rvc1"), (["--only", "int9"], "no way 'int9'")):
        told = CliRunner().invoke(main, ["bench", "bytes", "--quick", *given])
        assert told.exit_code == 1 and said in told.output
