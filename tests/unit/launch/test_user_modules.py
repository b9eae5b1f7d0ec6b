"""Code that a job names is imported only if this host's operator names it, too (T11)."""

from __future__ import annotations

import pytest

from shoal.errors import Invalid
from shoal.job import Job
from shoal.launch.user_modules import allowed, code_of
from shoal.models.torch_module import Module

JOB = Job.of(
    {"data": "digits", "model": {"net": "/home/ann/nets/net.py:Net", "loss": "losses:soft"}, "launch": {"modules": ["mine"]}}
)  # fmt: skip


def test_all_the_code_of_a_job_is_known_by_name() -> None:
    assert code_of(JOB) == ["mine", "/home/ann/nets/net.py:Net", "losses:soft"]
    assert code_of(Job.of({"data": "clicks"})) == []


def test_what_is_not_named_here_is_refused_with_what_to_say() -> None:
    with pytest.raises(Invalid, match=r"--modules net\.py:Net --modules losses:soft"):
        allowed(JOB, ["mine"])


def test_the_operators_own_file_is_the_one_that_is_read() -> None:
    job = allowed(JOB, ["mine", "here/net.py:Net", "losses:soft", "more"])
    assert isinstance(job.model, Module)
    assert (job.model.net, job.model.loss) == ("here/net.py:Net", "losses:soft")
    assert job.launch.modules == ["mine", "more"]
