"""What the README shows is run as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import shoal

README = (Path(__file__).parents[2] / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_the_first_snippet_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    snippet = next(block for block in BLOCKS if "shoal.AdaGrad(step=0.1)" in block)
    exec(compile(snippet, "README.md", "exec"), {})
    said = re.search(r"print\(weights\)  # (.*)", snippet)
    assert said is not None
    assert capsys.readouterr().out.strip() == said.group(1)


def test_the_steps_of_the_readme_are_plain_gradient_descent() -> None:
    snippet = next(block for block in BLOCKS if "apply=shoal.Step(slots=2), max_delay=0" in block)
    with shoal.local(servers=2) as cluster:
        kv = cluster.client()
        exec(compile(snippet, "README.md", "exec"), {"kv": kv, "shoal": shoal})
        weights = np.zeros(4)
        for _ in range(3):
            weights -= 0.1 * 2 * (weights - 1)
        assert kv.pull("w", slice(None)).result(30) == pytest.approx(weights, abs=1e-6)


def test_an_update_of_ones_own_works_as_shown(tmp_path: Path) -> None:
    module, use = (
        next(block for block in BLOCKS if word in block) for word in ("@shoal.update", 'modules=["my_updates"]')
    )
    (tmp_path / "my_updates.py").write_text(module)
    check = '\n    print(kv.push_pull("w", [1], [2.0]).result(30))\n'
    (tmp_path / "script.py").write_text("import shoal\nfrom my_updates import momentum\n\n" + use + check)
    ran = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ran.stdout.strip() == "[-0.02]", ran.stderr
