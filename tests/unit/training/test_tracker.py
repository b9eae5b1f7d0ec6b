"""The tracker counts steps, where a step has one slot of every rank.

It knows how many slots there are until a given step.
"""

from __future__ import annotations

from shoal.data.datasets import load
from shoal.job import Job
from shoal.models.learner import learner_of
from shoal.training.tracker import Tracker


def test_steps_are_those_that_were_taken_when_a_rank_is_lost_or_others_go_on() -> None:
    job = Job.of(
        {
            # Ten slots.
            "data": {"source": "rcv1-like", "rows": 200, "features": 1_000, "batch": 20},
            "strategy": "allreduce",
            "workers": 4,
            "stop": {"steps": 7},
        }
    )
    dataset = load(job.data, job.seed)
    learner = learner_of(job.model, dataset.train, job.seed)
    score = Tracker(job, dataset, learner, lambda event: None, slots_per_step=4)
    assert score.limit == 24  # 4, 4, 2; 4, 4, 2; 4
    score.add(4, 80, 1.0, 0.1, {}, steps=1)
    score.step_by(3)
    assert (score.steps, score.limit) == (1, 20)  # 3, 3; 3, 3, 3, 1
    score.add(3, 60, 1.0, 0.1, {}, steps=1)
    again = Tracker(job, dataset, learner, lambda event: None, slots_per_step=1)
    again.restore(score.state())
    assert (again.steps, again.done, again.limit) == (2, 7, 12)  # 1, 1, 1; 1, 1
