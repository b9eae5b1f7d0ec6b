"""Of tests that come in several variants one or two run every time; the others wait for the soak: together they take too long."""

from __future__ import annotations

import pytest

LATER = (
    "test_coordinator.py::test_push_and_pull_go_on_while_the_coordinator_is_down_and_it_comes_back_as_it_was[tcp]",
    "test_coordinator.py::test_who_joins_while_there_is_no_coordinator_waits_for_it[tcp]",
    "test_coordinator.py::test_a_server_that_ended_while_there_was_no_coordinator_is_gone_when_it_is_back[tcp]",
    "test_coordinator.py::test_a_coordinator_that_cannot_come_back_ends_the_cluster_which_says_why[tcp]",
    "test_coordinator.py::test_a_run_whose_coordinator_is_killed_twice_counts_every_slot_once[bounded]",
    "test_coordinator.py::test_a_run_loses_its_coordinator_and_a_worker_at_once[bounded]",
    "test_coordinator.py::test_a_run_loses_its_coordinator_and_a_worker_at_once[async]",
    "goes_on_as_far_as_the_deals_reach[killed-async]",
    "goes_on_as_far_as_the_deals_reach[stopped-sync]",
    "interrupted_while_its_coordinator_is_stopped[SIGINT]",
    "test_resume.py::test_a_synchronous_run_that_was_killed_and_taken_up_is_the_same_bit_for_bit[2]",
    "test_resume.py::test_a_synchronous_run_that_was_killed_and_taken_up_is_the_same_bit_for_bit[3]",
    "test_resume.py::test_a_run_that_was_killed_and_taken_up_learns_as_well[bounded]",
    "test_resume.py::test_an_interrupted_run_goes_on_from_where_it_was_interrupted[2-130]",
    "test_rollback.py::test_a_synchronous_run_that_lost_a_part_of_its_model_is_the_same_bit_for_bit[2]",
    "test_rollback.py::test_a_run_that_lost_a_part_of_its_model_ends_with_every_slot_counted[bounded]",
    "test_drill.py::test_workers_and_the_coordinator_are_killed_and_every_push_counts_once[sync",
    "test_faults_network.py::test_messages_that_come_twice_some_much_later_are_counted_once[each]",
    "are_dropped_and_told_and_what_they_said_is_counted_once[framing]",
    "killed_after_it_sent_and_before_it_heard_is_counted_once[push-step]",
    "killed_after_it_sent_and_before_it_heard_is_counted_once[counted-each]",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(name in item.nodeid for name in LATER):
            item.add_marker(pytest.mark.soak)
