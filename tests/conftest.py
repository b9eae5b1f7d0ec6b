"""For all tests: asserts of the suite in shoal.testing are shown as those of a test are; and what many of them need."""

from __future__ import annotations

import fcntl
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from shoal.testing.den import Den
    from shoal.testing.warm import Warm

pytest.register_assert_rewrite("shoal.testing.conformance", "shoal.testing.watch")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of this module's own; where packed sets lie in it."""
    folder = tmp_path_factory.mktemp("cache")
    folder.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOAL_CACHE", str(folder))
        yield folder / "data"


# In the order in which they know each other; what is in one tuple is compiled by one process.
KERNELS = (
    ("shoal.store.kernels", "shoal.store.rare_kernels", "shoal.filters.kernels"),
    (
        "shoal.data.kernels",
        "shoal.data.draw",
        "shoal.models.kernels",
        "shoal.models.column_kernels",
        "shoal.strategies.kernels",
    ),
)


@pytest.fixture(autouse=True, scope="session")
def kernels_are_compiled_once(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Of several processes that test in a fresh clone each begins with another part, and finds the rest in numba's cache."""
    number = getattr(request.config, "workerinput", {}).get("workerid", "").removeprefix("gw")
    if not number.isdigit():
        return  # one process alone compiles what it needs
    first = int(number) % len(KERNELS)
    for part in (*range(first, len(KERNELS)), *range(first)):
        with open(tmp_path_factory.getbasetemp().parent / f"kernels-{part}", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for module in KERNELS[part]:
                importlib.import_module(module)


AFRESH = ("test_nursery.py", "test_endings.py", "test_launch.py")  # what a start itself does is told there


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    from shoal.testing.warm import Warm

    with Warm() as one:
        yield one


@pytest.fixture(autouse=True, scope="module")
def nurseries_have_their_imports(request: pytest.FixtureRequest) -> Iterator[None]:
    """One set of imports for all clusters that the tests of this process start; those of programs under test have their own."""
    from shoal.launch import children
    from shoal.testing.warm import Warm

    if not Warm.can or request.path.name in AFRESH or "unit" in request.path.parts:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        # It is begun when the first cluster is.
        patch.setattr(children, "start_nursery", lambda: request.getfixturevalue("warm").start())
        yield


@pytest.fixture
def den() -> Iterator[Den]:
    from shoal.testing.den import Den

    with Den() as one:
        yield one


LATER = (  # of several variants one or two run every time, the others wait for the soak: together they take too long
    "test_seeds.py::test_nothing_is_lost_doubled_too_stale_or_silent[1]",
    "test_mutants.py::test_a_mutant_is_caught[no epoch check on backup]",
    "test_mutants.py::test_a_mutant_is_caught[parked worker waited for]",
    "test_mutants.py::test_a_mutant_is_caught[clock by count]",
    "test_sweep.py::test_a_sweep_that_is_ended_leaves_nothing_behind_and_goes_on_when_started_again[2-130]",
    "test_sweep.py::test_a_sweep_that_is_ended_leaves_nothing_behind_and_goes_on_when_started_again[9--9]",
    "test_sweep.py::test_a_loss_that_runs_away_is_a_result_and_not_run_again",
    "test_stragglers.py::test_an_automatic_delay_grows_while_workers_wait_too_much",
    "test_bench_clocks.py::test_memory_follows_the_ranges_and_not_the_keys",
    "test_report.py::test_a_sweep_gets_a_page_too_alone_or_beside_runs",
    "test_coordinator.py::test_a_run_whose_coordinator_is_away_for_long_goes_on_as_far_as_the_deals_reach[stopped-async]",
    "test_drill.py::test_workers_and_the_coordinator_are_killed_and_every_push_counts_once[async-gap0]",
    "test_training.py::test_a_worker_that_sleeps_too_long_is_replaced_and_comes_back_as_a_new_one[sync]",
    "test_faults_workers.py::test_a_slow_worker_holds_the_others_at_the_bound_and_they_are_told_for_whom_they_wait",
    "test_resume.py::test_a_run_is_taken_up_by_other_numbers_of_servers_and_workers",
    "test_real_data.py::test_news_are_told_apart[hinge]",
    "bit_for_bit[hinge-sgd]",
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
    "test_bench_keys.py::test_it_counts_keys_and_bytes_and_shows_what_is_left_of_clicks",
    "test_bench_checkpoint.py::test_the_command_prints_the_ratios",
    "test_bench_copies.py::test_copies_cost_the_bytes_that_they_should",
    "test_bench_failover.py::test_killed_and_stopped_servers_are_replaced",
    "test_bench_dense.py::test_the_command_prints_and_draws_what_it_measured",
    "test_bench_reading.py::test_the_real_files_are_read_by_both_and_the_click_log_by_us",
    "test_sweep.py::test_a_study_that_changes_keeps_the_runs_that_are_still_in_it",
    "test_sweep.py::test_everything_is_killed_at_once_and_no_finished_run_is_lost",
    "goes_on_as_far_as_the_deals_reach[killed-sync]",
    "interrupted_while_its_coordinator_is_stopped[SIGTERM]",
    "test_coordinator.py::test_a_run_whose_coordinator_is_killed_twice_counts_every_slot_once[async]",
    "test_training.py::test_a_worker_killed_at_the_start_of_a_run_leaves_it_to_the_others_or_ends_it[1-0.01]",
    "test_hogwild.py::test_one_worker_with_a_module_is_the_serial_run_bit_for_bit",
    "test_real_data.py::test_processes_learn_what_threads_learn",
    "test_averaging.py::test_two_ranks_killed_at_once_and_one_at_the_very_start_change_nothing",
    "test_endings.py::test_the_others_go_on_when_a_worker_process_is_killed_while_it_pushes[tcp]",
    "test_faults_servers.py::test_a_server_killed_in_steady_state_is_made_up_for[each]",
    "test_faults_workers.py::test_a_worker_killed_between_pushes_is_made_up_for[each]",
    "test_drill.py::test_servers_are_killed_and_paused_as_long_as_a_copy_is_left",
    # of workers that gossip, and of peers
    "test_peers.py::test_a_peer_that_slept_too_long_is_put_out_and_comes_back_as_a_new_one",
    "test_gossip.py::test_a_worker_that_is_stopped_and_holds_up_the_others_is_killed_and_that_is_told[async]",
    "test_gossip.py::test_nothing_is_left_of_a_run_that_is_ended[2]",
    "test_gossip.py::test_a_round_is_a_mean_by_the_weights_and_a_step_with_the_gradient_of_before[complete]",
    "test_gossip.py::test_without_learning_all_agree_as_fast_as_was_predicted[star]",
    "test_gossip.py::test_whoever_has_which_rows_every_row_is_learned_once_a_pass[shuffled]",
    "test_gossip.py::test_a_network_gossips[async]",
    "test_peers.py::test_all_that_live_end_with_the_same_weights_whatever_happened[1-owned]",
    "test_peers.py::test_all_that_live_end_with_the_same_weights_whatever_happened[2-",
    "test_peers.py::test_half_of_the_peers_may_sleep_and_the_others_go_on",
    "test_peering.py::test_all_that_live_have_the_same_weights_and_nothing_twice[1]",
    "test_peering.py::test_a_broken_variant_is_caught[words heard again]",
    "test_peering.py::test_a_broken_variant_is_caught[copied before entered]",
    "test_peering.py::test_a_broken_variant_is_caught[early words of the dead]",
    "test_peering.py::test_a_broken_variant_is_caught[halves that never call]",
    "test_peering.py::test_a_broken_variant_is_caught[no half gives way]",
    "test_gossiping.py::test_a_mutant_is_caught[met applied twice]",
    "test_gossiping.py::test_a_mutant_is_caught[share kept and given]",
    "test_gossiping.py::test_a_mutant_is_caught[nobody asks again]",
    # of servers that come and go, hosts, keys and groups
    "test_bench_skew.py::test_by_load_hot_segments",
    "test_hosts.py::test_a_coordinator_that_is_started_again_goes_on_with_those_who_are_still_there",
    "test_hosts.py::test_a_store_is_used_by_a_program_and_outlives_its_coordinator",
    "test_keys.py::test_a_run_over_machines_with_keys_cuts_off_who_is_revoked_and_both_sides_say_so",
    "test_strangers.py::test_a_server_that_may_open_few_descriptors_takes_as_many_callers_as_it_has_room_for",
    "test_groups.py::test_a_group_that_is_killed_whole_leaves_its_tables_and_nobody_elses_run_is_harmed",
    "test_groups.py::test_a_groups_run_is_taken_up_again_from_its_own_checkpoint",
    "test_arrivals.py::test_sync_is_the_same_run_however_its_workers_come_and_go[tasks]",
    "test_arrivals.py::test_sync_is_the_same_run_however_its_workers_come_and_go[kept]",
    "test_moves.py::test_nothing_is_lost_or_doubled_while_servers_come_and_go[1]",
    "test_bench_elastic.py::test_a_server_joins_and_leaves_while_all_slots_are_counted_once",
    "test_bench_skew.py::test_the_table_shows_both",
    "test_bench_curve.py::test_keys_are_measured_against_none_and_every_refusal_is_told",
    "test_groups.py::test_a_worker_of_a_group_may_be_killed_and_others_do_what_it_had",
    # older ones that take long
    "whoever_computes_them_and_wherever[tcp-",
    "test_peers.py::test_a_peer_joins_by_one_address_and_goes_on_alone_when_all_others_are_killed",
    "test_peers.py::test_a_run_whose_peers_are_all_killed_fails_and_is_taken_up_again_by_another_number",
    "-processes-it_stops_after_its_steps]",
    "-processes-it_stops_when_patience_runs_out_and_keeps_the_best_weights]",
    "test_a_strategy_passes[bounded-processes-",
    "test_endings.py::test_nothing_is_left_when_the_parent_ends_at_any_moment[tcp-",
    "are_dropped_and_told_and_what_they_said_is_counted_once[prefix]",
    "are_dropped_and_told_and_what_they_said_is_counted_once[length]",
    "test_stragglers.py::test_emulated_examples_take_what_they_are_said_to_take[async]",
    "test_hogwild.py::test_an_error_of_a_module_is_told_in_its_own_words",
    "test_faults_network.py::test_messages_that_overtake_each_other_across_connections_are_counted_once[step]",
    "test_real_data.py::test_news_are_told_apart[logistic]",
    "test_bench_clocks.py::test_the_command_writes_what_it_found",
    "test_bench_torch.py::test_the_command_prints_what_it_measured",
    "test_bench_bytes.py::test_what_filters_save_is_counted_and_drawn",
    "test_bench_keys.py::test_all_rivals_do_the_same",
    "test_bench_hogwild.py::test_the_command_prints_and_keeps_what_it_measured",
    "test_bench_checkpoint.py::test_all_contestants_write_and_read_the_same_and_nothing_is_left",
    "[averaging-over=gloo-every=4-step=1.0-processes-it_learns_what_the_serial_run_learns]",
    "[averaging-over=gloo-every=4-step=1.0-processes-it_ends_well_when_a_worker_is_killed]",
    "[allreduce-processes-it_ends_well_when_a_worker_is_killed]",
    "[hogwild-step=1.0-per_example=2e-05-processes-it_stops_after_its_epochs]",
    "send=owned-per_example=0.0003-processes-it_survives_a_killed_worker]",
    "bit_for_bit[logistic-proximal_adagrad-False]",
    "bit_for_bit[logistic-proximal_sgd-False]",
    "bit_for_bit[logistic-adagrad-False]",
    "test_training.py::test_an_interrupted_run_saves_what_was_learned_and_leaves_nothing_else[SIGHUP]",
    "test_training.py::test_an_interrupted_run_saves_what_was_learned_and_leaves_nothing_else[Ctrl-C before",
    "test_training.py::test_workers_come_and_go_while_it_runs[bounded]",
    "test_second_copies_of_a_slow_workers_slots_change_nothing_but_who_computes_them[2]",
    "test_nursery.py::test_a_cluster_is_closed_whoever_of_it_is_stopped[server-0 and nursery]",
    "test_hostile.py::test_connections_that_are_opened_and_left_are_closed_again[ipc]",
    "test_averaging.py::test_ranks_that_are_killed_one_by_one_leave_their_slots_to_the_others[end]",
    "test_hogwild.py::test_workers_with_a_module_share_the_work_and_learn",
    "test_gossip.py::test_what_a_module_raises_in_a_worker_is_told_and_the_others_go_on",
    "test_allreduce.py::test_a_module_takes_the_steps_of_a_sync_run_to_rounding[True]",
    "test_training.py::test_a_worker_that_sleeps_too_long_is_replaced_and_comes_back_as_a_new_one[async]",
    # of signals, transports and ways to stop: one of each kind runs every time
    "test_nursery.py::test_nothing_is_left_when_the_parent_ends_between_a_fork_and_its_address[tcp-SIGTERM]",
    "test_nursery.py::test_nothing_is_left_when_the_parent_ends_between_a_fork_and_its_address[tcp-SIGHUP]",
    "test_nursery.py::test_nothing_is_left_when_the_parent_ends_while_all_run[tcp-SIGTERM]",
    "test_nursery.py::test_nothing_is_left_when_the_parent_ends_while_all_run[tcp-SIGHUP]",
    "test_nursery.py::test_nothing_is_left_when_the_parent_ends_while_the_nursery_imports[tcp-SIGTERM]",
    "test_nursery.py::test_nothing_is_left_when_the_parent_ends_while_the_nursery_imports[tcp-SIGHUP]",
    "test_endings.py::test_nothing_is_left_when_a_program_forgets_to_close[threads-end-0]",
    "test_endings.py::test_nothing_is_left_when_a_program_forgets_to_close[threads-exit-3]",
    "test_endings.py::test_nothing_is_left_when_the_terminal_is_closed[tcp]",
    "test_endings.py::test_a_server_that_pauses_and_comes_back_completes_the_call[tcp]",
    "test_endings.py::test_two_clusters_at_once_do_not_disturb_each_other[tcp]",
    "test_endings.py::test_a_cluster_closed_while_calls_are_under_way_ends_them[tcp]",
    "[averaging-every=4-step=1.0-processes-it_stops",
    "[sync-processes-it_stops",
    "test_training.py::test_workers_come_and_go_while_it_runs[async]",
    "test_training.py::test_workers_killed_at_any_moment_are_made_up_for[async-4-2]",
    "test_training.py::test_workers_killed_at_any_moment_are_made_up_for[bounded-4-2]",
    "test_hogwild.py::test_workers_are_killed_in_a_loop_and_every_slot_counts_once[locked]",
    "test_synthetic.py::test_a_set_that_is_written_and_read_is_the_same[.xz-rcv1-like]",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(name in item.nodeid for name in LATER):
            item.add_marker(pytest.mark.soak)
