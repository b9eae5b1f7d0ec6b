"""The monotonic clocks of hosts are days apart (F28).

No time that one host has read means anything to another.
"""

from __future__ import annotations

import subprocess

import pytest

from tests.support.multi_host import Site
from tests.support.sandbox import soon

DAY = 86_400


def in_another_time(seconds: int) -> list[str]:
    """Returns the prefix of a command whose clocks are ahead, or skips if there is none."""
    command = ["unshare", "-T", "--monotonic", str(seconds), "--boottime", str(seconds)]
    try:
        done = subprocess.run([*command, "true"], capture_output=True, text=True, timeout=20, check=False)
    except FileNotFoundError:
        pytest.skip("the command unshare is not installed")
    if done.returncode != 0:
        pytest.skip(f"no time namespaces here: {done.stderr.strip()}")
    return command


@pytest.mark.soak
def test_servers_whose_clocks_are_days_apart_keep_their_promises(site: Site) -> None:
    before = site.members()
    for number, name in enumerate(site.servers):
        site.processes[name].kill()
        site.processes[name].communicate()
        assert soon(lambda name=name: name not in site.members())  # type: ignore[misc]  # else its name is refused as taken
        site.post(name, within=in_another_time(DAY * (number + 1)))
        assert soon(lambda name=name: site.members().get(name, 0) > before[name])  # type: ignore[misc]
    here = site.members()
    for kind in ("step", "clients"):
        crowd = site.gather(kind)
        site.check(crowd)
        assert crowd.ended == []
    # No server was removed.
    assert {name: site.members()[name] for name in site.servers} == {name: here[name] for name in site.servers}
