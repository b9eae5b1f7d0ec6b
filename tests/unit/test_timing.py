"""Timeouts between nodes: operators set seconds, nodes use nanoseconds.

The intervals are checked together.
"""

from __future__ import annotations

import math
import tomllib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.cluster.membership_client import MembershipClient
from shoal.errors import Invalid
from shoal.job import Job
from shoal.limits import SECOND
from shoal.nodes.coordinator import Coordinator
from shoal.nodes.drainable import DrainableNode
from shoal.nodes.membership_journal import afresh
from shoal.store.client.client import Client
from shoal.timing import DEFAULT, LEAST, MOST, SCALES, Timing, TimingSettings, others_than, seconds_of, timing_from
from shoal.wire import coding
from shoal.wire import messages as m
from shoal.wire.effects import Durable, Effect, Persist, Received, Send, Tick
from tests.support.quick import AS_SETTINGS, QUICK


def test_nothing_set_is_the_defaults() -> None:
    assert Timing().intervals() == DEFAULT
    assert (DEFAULT.heartbeat, DEFAULT.suspect, DEFAULT.dead) == (SECOND // 2, 2 * SECOND, 5 * SECOND)


def test_scale_multiplies_every_default_and_single_values_override() -> None:
    four = Timing(scale=4.0, heartbeat=1.0).intervals()
    assert four.heartbeat == SECOND
    others = [name for name in TimingSettings.__struct_fields__ if name != "heartbeat"]
    assert all(getattr(four, name) == 4 * getattr(DEFAULT, name) for name in others)


def test_whoever_is_held_for_dead_later_is_waited_for_longer() -> None:
    assert Timing(dead=20.0).intervals().silence == 40 * SECOND
    assert Timing(dead=20.0, silence=25.0).intervals().silence == 25 * SECOND
    with pytest.raises(
        Invalid, match=r"timing\.silence=15: needs more than timing\.dead=20, .*: raise timing\.silence"
    ):
        Timing(dead=20.0, silence=15.0)


@given(st.floats(*SCALES))
def test_every_scale_keeps_the_rules(scale: float) -> None:
    found = Timing(scale=scale).intervals()
    assert all(LEAST <= getattr(found, name) <= MOST for name in TimingSettings.__struct_fields__)


@pytest.mark.parametrize(
    ("scale", "said"), [(math.nan, "nan"), (math.inf, "inf"), (0.0, "0"), (-1.0, "-1"), (1e9, "1e")]
)
def test_a_scale_that_cannot_be_is_refused(scale: float, said: str) -> None:
    with pytest.raises(Invalid, match=rf"timing\.scale={said}.*: needs 0\.05 to 100; 1 changes nothing"):
        Timing(scale=scale)


@pytest.mark.parametrize("name", TimingSettings.__struct_fields__)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.0, -1.0, 1e-9, 1e9, 1e300])
def test_a_value_that_cannot_be_is_refused_by_its_name(name: str, value: float) -> None:
    with pytest.raises(Invalid, match=rf"timing\.{name}=.*: needs .*seconds"):
        Timing(**{name: value})


RULES = [
    ({"heartbeat": 2.0}, "suspect", "heartbeat"),
    ({"suspect": 5.0}, "dead", "suspect"),
    ({"dead": 3.0, "silence": 10.0}, "dead", "shrink"),
    ({"shrink": 5.0}, "dead", "shrink"),
    ({"level_again": 4.0}, "shrink", "level_again"),
    ({"notice": 4.0, "silence": 20.0}, "shrink", "notice"),
    ({"notice": 3.5}, "silence", "notice"),
    ({"copy_resend": 1.5}, "shrink", "copy_resend"),
    ({"resend_most": 10.0}, "silence", "resend_most"),
    ({"resend_first": 4.1}, "resend_most", "resend_first"),
    ({"dead": 60.0}, "patience", "dead"),
    ({"dead": 30.0}, "gone", "dead"),
    ({"leave_still": 5.0}, "leave_still", "dead"),
    ({"snap_again": 60.0}, "snap_within", "snap_again"),
    ({"save_retry": 301.0}, "save_retry_most", "save_retry"),
    ({"join_within": 4.0}, "join_within", "dead"),
    ({"called": 5.0}, "called", "dead"),
]


@pytest.mark.parametrize(("given", "more", "less"), RULES)
def test_values_that_do_not_go_together_are_refused_with_both_and_what_to_do(
    given: dict[str, float], more: str, less: str
) -> None:
    with pytest.raises(Invalid) as refused:
        Timing(**given)
    said = str(refused.value)
    assert said.startswith(f"timing.{more}=") and f"timing.{less}=" in said
    assert said.endswith(f": raise timing.{more}, or lower timing.{less}")


def test_a_job_has_it_and_its_file_too() -> None:
    job = Job.of({"data": "clicks", "timing": {"dead": 20, "scale": 2}})
    assert job.timing == Timing(scale=2.0, dead=20.0)
    assert Job.of(tomllib.loads(job.toml())) == job
    kept = tomllib.loads(job.toml())["timing"]
    assert kept == {"scale": 2.0, "dead": 20.0}  # the rest is not set, and so stays in proportion
    assert "# heartbeat = (not set)" in job.toml()


def test_a_run_may_go_on_with_another_timing() -> None:
    assert Job.of({"data": "clicks"}).identity == Job.of({"data": "clicks", "timing": {"scale": 4}}).identity


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"ded": 3.0}, "timing has no 'ded': did you mean 'dead'?"),
        ({"dead": "soon"}, "timing.dead='soon': needs a number of seconds"),
        ({"dead": True}, "timing.dead=True: needs a number of seconds"),
    ],
)
def test_what_a_caller_says_is_checked(given: dict[str, float], said: str) -> None:
    with pytest.raises(Invalid) as refused:
        timing_from(given)
    assert str(refused.value) == said


def test_a_job_that_names_no_such_interval_is_told_the_nearest() -> None:
    with pytest.raises(Invalid, match=r"no setting timing\.ded: did you mean 'timing\.dead'\?"):
        Job.of({"data": "clicks", "timing": {"ded": 20}})


def test_differences_are_told_in_a_few_words() -> None:
    assert others_than(DEFAULT) == ""
    assert others_than(Timing(scale=4.0).intervals()) == "x 4 (dead after 20 s)"
    assert others_than(Timing(dead=20.0).intervals()) == "dead 20 s, silence 40 s"


def test_the_quick_timing_of_tests_is_a_fifth_where_silence_counts() -> None:
    quick = QUICK.intervals()
    for name in ("heartbeat", "suspect", "dead", "shrink", "silence", "resend_first", "resend_most", "notice"):
        assert 5 * getattr(quick, name) == getattr(DEFAULT, name)
    assert Job.of({"data": "clicks"}).timing != QUICK
    settings = {name.removeprefix("timing."): value for name, value in AS_SETTINGS.items()}
    assert Timing(**settings) == QUICK


# ---------------------------------------------------------------- sent by the coordinator

QUICKER = Timing(scale=0.2).intervals()


def greeted(coordinator: Coordinator, name: str = "ann", now: int = SECOND) -> m.Welcome:
    effects = coordinator.handle(now, Received(name, m.Hello(name, "server", "t.0", "memory:ann")))
    records = [one for one in effects if isinstance(one, Persist)]
    more: list[Effect] = []
    for record in records:
        more += coordinator.handle(now, Durable(record.token, ""))
    return next(
        one.message for one in [*effects, *more] if isinstance(one, Send) and isinstance(one.message, m.Welcome)
    )


def test_the_coordinator_tells_its_timing_to_whoever_joins() -> None:
    welcome = greeted(Coordinator(timing=QUICKER))
    sent, _ = coding.decode(coding.encode(welcome))
    assert isinstance(sent, m.Welcome) and sent.view.timing == QUICKER
    member = MembershipClient("ann", "server", "t")
    assert member.timing == DEFAULT  # until it gets the coordinator's view
    member.tick(SECOND)
    member.handle(SECOND, sent)
    assert member.timing == QUICKER
    assert member.next == SECOND + QUICKER.heartbeat


def test_a_client_waits_as_the_view_says() -> None:
    client = Client("eve")
    client.take_view(SECOND, m.View(1, 1, 0, [], [], [], QUICKER), 1)
    assert client.dispatcher.inflight.timing == QUICKER


def test_who_is_silent_for_the_time_that_was_set_is_removed() -> None:
    coordinator = Coordinator(timing=QUICKER)
    greeted(coordinator)
    now = SECOND
    while now < SECOND + QUICKER.dead - QUICKER.heartbeat:
        now += QUICKER.heartbeat
        coordinator.handle(now, Tick())
        assert "ann" in coordinator.roster.members
    coordinator.handle(SECOND + QUICKER.dead, Tick())
    assert coordinator.roster.lost == {"ann": "silent for 1 s"}


def test_a_coordinator_that_is_started_again_tells_what_it_told_before_unless_it_is_told_otherwise() -> None:
    first = Coordinator(timing=QUICKER)
    effects = first.handle(SECOND, Received("ann", m.Hello("ann", "server", "t.0", "memory:ann")))
    journal = [one.record for one in effects if isinstance(one, Persist)]
    assert Coordinator(journal=journal).timing == QUICKER
    assert Coordinator(journal=afresh(journal)).timing == QUICKER
    other = Coordinator(journal=journal, timing=DEFAULT)
    assert other.timing == DEFAULT and other.roster.view().timing == DEFAULT


def test_a_guest_waits_for_the_coordinator_as_that_one_said_or_as_its_host_does() -> None:
    member = MembershipClient("ann", "server", "t")
    member.view = m.View(1, 1, 0, [], [], [], QUICKER)

    class Node:
        name = "ann"

        def handle(self, now: int, event: object) -> list[Effect]:
            return []

    assert DrainableNode(Node(), member).patience == QUICKER.patience
    assert DrainableNode(Node(), member, 7 * SECOND).patience == 7 * SECOND
    assert DrainableNode(Node(), member, None).patience is None


@pytest.mark.parametrize("wrong", [0, -1, MOST + 1, 1 << 62])
def test_a_view_with_an_interval_that_cannot_be_is_no_message(wrong: int) -> None:
    values = list(msgspec.structs.astuple(DEFAULT))
    values[2] = wrong
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(values), type=TimingSettings)


def test_intervals_that_do_not_go_together_are_no_message_either() -> None:
    values = list(msgspec.structs.astuple(DEFAULT))
    values[0] = 3 * SECOND  # a heartbeat above suspect
    with pytest.raises(msgspec.ValidationError, match="suspect"):
        msgspec.msgpack.decode(msgspec.msgpack.encode(values), type=TimingSettings)


def test_they_are_told_in_seconds() -> None:
    assert seconds_of(QUICKER)["dead"] == 1.0
