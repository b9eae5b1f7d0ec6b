"""Runs a drill: breaks a run and audits the result.

    report = drill(job, ChaosSettings(seed=7), seconds=60)

First the clean run, for so many seconds; then the same job with faults, over the complete epochs
of the clean run, at least one. The last tenth has no faults, so that the run ends healed, and the
audit follows. In an incomplete epoch the set of computed slots would be unknown: one could hide
the loss of another.

Sync promises the same model bit for bit, whatever is broken. There the clean run is made twice: a
timed one, to learn how many epochs fit, then one that ends exactly after them. An evaluation of the
timed one may be a step past the epoch.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import time
from collections import deque

import msgspec

from shoal.chaos.audit import PushAudit, fingerprint, model_digest, promises_same_bits
from shoal.chaos.plan import COORDINATOR, ChaosFault, ChaosSettings, ClusterState, FaultPlanner, role_of
from shoal.chaos.recovery import FaultyNode, look, states
from shoal.chaos.report import ChaosListener, ChaosReport, ChaosState, judged
from shoal.chaos.run_under_test import ClusterSnapshot, RunUnderTest
from shoal.data.datasets import Dataset, load
from shoal.errors import Invalid, ShoalError
from shoal.events import Evaluated, Gone, Joined, Progress, RolledBack, RunEvent, Started, Stopped, Voided
from shoal.files import cache_folder, replace_file
from shoal.job import Job
from shoal.training.tracker import RunResult
from shoal.views import event_line, format
from shoal.wire import messages as m

TICK = 0.05  # seconds
LOOK_WITHIN = 2.0  # seconds: a slower coordinator counts as dead
HEALED_FROM = 0.9  # of the work: no faults after that
RECENT = 1.5  # seconds over which a rate is taken
SETTLE = 15.0  # seconds after the end for copies to be made again
FORMAT = 3  # of stored clean runs


class CleanRun(msgspec.Struct, frozen=True):
    """The stored result of a clean run: its first epochs."""

    passes: int
    loss: float | None
    seconds: float
    model: str = ""  # digest of the weights after exactly these; empty: not comparable


def drill(
    job: Job,
    settings: ChaosSettings,
    seconds: float,
    listener: ChaosListener | None = None,
    clean: CleanRun | None = None,
) -> ChaosReport:
    """Run the drill; on Ctrl-C the error has the report so far (``error.report``)."""
    listener = listener or ChaosListener()
    if not 0 < seconds < math.inf:
        raise Invalid(f"{seconds} seconds: give a finite number above 0")
    dataset = load(job.data, job.seed, progress=listener.note)
    clean = clean or clean_run(job, dataset, seconds, listener, settings.cuts > 0)
    job = _ending(job, {"epochs": float(clean.passes)})
    return ChaosRun(job, dataset, settings, clean, listener).run()


def clean_run(job: Job, dataset: Dataset, seconds: float, listener: ChaosListener, proxied: bool = False) -> CleanRun:
    """Run the job without faults, maybe ``proxied``; cached: it only varies by noise."""
    same_bits = promises_same_bits(job)
    code = fingerprint() if same_bits else ""  # other code or libraries may make other bits
    timed = _ending(job, {"seconds": seconds})
    key = hashlib.sha256(f"{FORMAT}\n{proxied}\n{code}\n{timed.toml()}".encode()).hexdigest()[:32]
    folder = cache_folder()
    file = None if folder is None else folder / "chaos" / f"{key}.json"
    if file is not None:
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            found = msgspec.json.decode(file.read_bytes(), type=CleanRun)
            listener.note(f"cached clean run: {format.many(found.passes, 'epoch')}, loss {format.loss(found.loss)}")
            return found
    listener.note(f"a clean run of {format.duration(seconds)} first, to compare with")
    found = _clean(ChaosRun(timed, dataset, None, CleanRun(0, None, seconds), listener, proxied))
    if not found.passes or same_bits:
        if not found.passes:
            listener.note(f"{format.duration(seconds)} are less than one epoch: a clean run of one epoch")
        else:
            listener.note(
                f"a clean run of exactly {format.many(found.passes, 'epoch')}: sync must end with the same model bit for bit"
            )
        whole = _ending(job, {"epochs": float(max(1, found.passes))})
        found = _clean(ChaosRun(whole, dataset, None, CleanRun(0, None, seconds), listener, proxied))
    if file is not None:
        with contextlib.suppress(OSError):  # it can be made again
            file.parent.mkdir(mode=0o700, exist_ok=True)
            replace_file(file, msgspec.json.encode(found))
    return found


def _ending(job: Job, stop: dict[str, float]) -> Job:
    return Job.of({**msgspec.to_builtins(job), "stop": stop})


def _clean(run: ChaosRun) -> CleanRun:
    report = run.run()
    if report.wrong:
        raise ShoalError(f"the clean run failed: {report.wrong[0]}: there is nothing to compare with")
    passes = max((math.floor(event.passes) for event in run.evaluated), default=0)
    if not passes:
        return CleanRun(0, None, report.seconds)
    first = next(event for event in run.evaluated if event.passes >= passes)
    exact = run.job.stop.epochs == passes
    return CleanRun(passes, first.test_loss, first.seconds, run.model if exact else "")


class ChaosRun:
    """One run, with or without faults."""

    def __init__(
        self,
        job: Job,
        dataset: Dataset,
        settings: ChaosSettings | None,
        clean: CleanRun,
        listener: ChaosListener,
        proxied: bool = False,
    ) -> None:
        self.job, self.clean, self.listener = job, clean, listener
        self.settings = settings or ChaosSettings()
        self.planner = None if settings is None else FaultPlanner(settings)
        self.target = RunUnderTest(job, dataset, self._on_event, cuts=proxied or self.settings.cuts > 0)
        self.state = ChaosState(job, None if settings is None else settings.seed, clean_loss=clean.loss)
        self.hit: list[FaultyNode] = []
        self.rollbacks = 0
        self.voids = 0
        self.model = ""  # digest of the weights at the end, if comparable
        self.evaluated: list[Evaluated] = []
        self._events: deque[RunEvent] = deque()  # from the coordinator's thread
        self._began = time.monotonic()
        self._next = 0.0
        self._seen: ClusterSnapshot | None = None
        self._rate: deque[tuple[float, int]] = deque()
        self._failed = ""

    def run(self) -> ChaosReport:
        outcome: RunResult | None = None
        stopped: BaseException | None = None
        audit = PushAudit()
        crew = f"{format.many(self.job.servers, 'server')} and {format.many(self.job.workers, 'worker')}"
        self.listener.note(f"starting {crew}")
        with self.target:
            self.listener.note("")
            self._next = self.planner.gap() if self.planner is not None else 0.0
            try:
                while (outcome := self.target.training.wait(TICK)) is None:
                    self._tick()
                self._settle()
            except KeyboardInterrupt as error:
                stopped = error
                self._resume(all_of_them=True)
                outcome = self.target.training.interrupted()
            finally:
                self._resume(all_of_them=True)  # a stopped process cannot end
            self._take_events()
            if outcome.failed and stopped is None:
                self._failed = outcome.why
            try:
                audit = self.target.balance(self.rollbacks > 0)
            except ShoalError as error:
                self._failed = self._failed or f"the tally cannot be read: {error}"
        report = self._report(audit, outcome, "interrupted" if stopped else "")
        if stopped is not None:
            stopped.report = report  # type: ignore[attr-defined]
            raise stopped
        return report

    @property
    def now(self) -> float:
        return time.monotonic() - self._began

    def _tick(self) -> None:
        self._take_events()
        self._look()
        self._resume()
        share = self._share()
        if self.planner is not None and self.now >= self._next and share < HEALED_FROM and self._inject():
            self._next = self.now + self.planner.gap()
        board = self.state
        board.seconds, board.share = self.now, share
        if self._seen is not None:
            board.members = states(self._seen.view, self._seen.standing, self._unhealed())
            if (course := self._seen.standing.course) is not None:
                board.acknowledged = course.done
        self.listener.board(board)

    def _share(self) -> float:
        course = None if self.target.seen is None else self.target.seen.standing.course
        if self.job.stop.epochs is None:  # the clock ends it
            return min(1.0, self.now / self.clean.seconds)
        return course.done / course.limit if course is not None and course.limit else 0.0

    def _unhealed(self) -> dict[str, FaultyNode]:
        return {one.fault.name: one for one in self.hit if not one.is_well and not one.planned}

    def _look(self) -> None:
        if self.target.seen is None or self.target.seen is self._seen:
            return
        self._seen = self.target.seen
        for node in self.hit:
            if "well" in node.times:
                continue
            for text in look(node, self.now, self._seen.view, self.job.copies, self._seen.asked - self._began):
                self._log("heal", text)
            if node.is_well:
                node.saw("well", self.now)
                self.state.recoveries += not node.planned

    def _resume(self, all_of_them: bool = False) -> None:
        """End the pauses and cuts that are over; start workers in the place of dead ones."""
        for node in self.hit:
            fault = node.fault
            if node.until is not None and (all_of_them or self.now >= node.until):
                node.until = None
                self.target.end(fault)
                if not all_of_them:
                    self._log("heal", f"{fault.name} resumes after {fault.seconds:.1f} s")
            if node.replace is not None and self.now >= node.replace and not all_of_them:
                node.replace = None
                node.successor = self.target.training.add_worker()
                self._log("heal", f"{node.successor} is started to replace {fault.name}")

    def _inject(self) -> bool:
        """Inject a fault, by a snapshot newer than its plan; False: there is none yet."""
        assert self.planner is not None
        seen = self._seen
        if seen is None:
            return False
        fresh = seen.asked - self._began >= self._next
        if not fresh and self.now - self._next < LOOK_WITHIN:
            return False
        # By an old snapshot only workers are hit: a replica set may have shrunk since.
        known = {one.name for one in seen.standing.members if not one.suspected} | ({COORDINATOR} if fresh else set())
        hurt = self._unhealed()
        well = [name for name in self.target.training.pids if name not in hurt and name in known]
        sets = [place.servers for one in seen.view.tables for place in one.places] if fresh else []
        leaving = {one.fault.name for one in self.hit if one.fault.kind == "drain" and not one.is_well}
        coming = [one.fault.name for one in self.hit if one.fault.kind == "join" and "back" not in one.times]
        here = [one.name for one in seen.view.members if one.role == "server"]
        staying = [name for name in dict.fromkeys([*here, *coming]) if name not in leaving]
        joined = sum(one.fault.kind == "join" for one in self.hit)
        state = ClusterState(well, sets, staying, next_server=f"server-{self.job.servers + joined}")
        for fault in self.planner.next(state, self._server_due()):
            self._begin(fault, seen.view)
        return True

    def _server_due(self) -> bool:
        """Whether a server must be killed now, since it may soon be too late."""
        if any((one.fault.kind, one.fault.role) == ("kill", "server") for one in self.hit):
            return False
        share = self._share()
        left = (HEALED_FROM - share) / share * self.now if share else math.inf
        return left < 2 * self.settings.gap[1]

    def _begin(self, fault: ChaosFault, view: m.View) -> None:
        members, owned = {one.name: one.incarnation for one in view.members}, self.target.owned(view, fault.name)
        node = FaultyNode(fault, self.now, members.get(fault.name, 0), len(owned))
        self.target.inject(fault)
        if fault.kind in ("pause", "cut"):
            node.until = self.now + fault.seconds
        elif (fault.kind, fault.role) == ("kill", "worker"):
            node.replace = self.now + fault.seconds
        self.hit.append(node)
        self.state.faults += not node.planned
        owns = f", which owns {format.many(len(owned), 'segment')} of the tally" if owned else ""
        self._log("news" if node.planned else "fault", f"{fault}{owns}")
        if owned and fault.kind != "join":
            node.probe = False

            def probed() -> None:  # on the client's thread
                node.saw("promoted", self.now)
                node.probe = True

            self.target.probe(owned, probed)

    def _settle(self) -> None:
        self._resume(all_of_them=True)
        deadline = time.monotonic() + SETTLE
        while time.monotonic() < deadline and any(not one.is_well for one in self.hit):
            if all(role_of(one.fault.name) == "worker" for one in self.hit if not one.is_well):
                break  # they have no work left, and do not come back
            self.target.next_look(deadline - time.monotonic())
            self._take_events()
            self._look()

    def _on_event(self, event: RunEvent) -> None:
        """On the coordinator's thread. Both clocks begin when training does."""
        if isinstance(event, Started):
            self._began = time.monotonic() - event.seconds
        self._events.append(event)

    def _take_events(self) -> None:
        while self._events:
            self._take(self._events.popleft())

    def _take(self, event: RunEvent) -> None:
        board = self.state
        match event:
            case Progress():
                self._rate.append((event.seconds, event.examples))
                while event.seconds - self._rate[0][0] > RECENT and len(self._rate) > 2:
                    self._rate.popleft()
                since, before = self._rate[0]
                if event.seconds > since:
                    rate = (event.examples - before) / (event.seconds - since)
                    board.throughput.append((event.seconds, max(0.0, rate)))
            case Evaluated():
                self.evaluated.append(event)
                board.loss = event.test_loss
                if format.finite(event.test_loss):
                    board.losses.append((event.seconds, event.test_loss))
            case Voided():
                self.voids += 1
                self._log("news", event_line.news(event))
            case RolledBack():
                self.rollbacks += 1
                self._log("bad", event_line.news(event))
            case Joined(name=name) | Gone(name=name) if event_line.is_news(event):
                concerned = any(name in (one.fault.name, one.successor) for one in self.hit)
                if not concerned:  # else reported as a recovery
                    self._log("news", event_line.news(event))
            case Stopped():
                self._log("news", f"over: {format.clean(event.why)}", event.seconds)

    def _log(self, style: str, text: str, at: float | None = None) -> None:
        seconds = self.now if at is None else at
        self.state.log.append((seconds, style, text))
        self.listener.said(seconds, style, text)

    def _report(self, audit: PushAudit, outcome: RunResult, why: str) -> ChaosReport:
        wrong = judged(audit, self._failed, self.rollbacks, self.settings.beyond)
        job, board = self.job, self.state
        newer = outcome.counts.get("slots with newer weights", 0)
        if outcome.judged is not None and promises_same_bits(job):
            self.model = model_digest(outcome.judged.weights)
        model = ""
        if self.clean.model and self.model and not why:
            model = "same" if self.model == self.clean.model else "other"
        if model == "other" and not newer and not self.voids:
            wrong.append(
                "sync ended at another model than the clean run, and no slot read newer weights or was void: "
                f"weights {self.model[:16]}, clean run {self.clean.model[:16]}"
            )
        return ChaosReport(
            **{name: getattr(audit, name) for name in ("sent", "acknowledged", "counted", "lost", "doubled")},
            faults=board.faults,
            changes=sum(one.planned for one in self.hit),
            beyond=self.settings.beyond,
            recoveries=board.recoveries,
            loss=None if outcome.judged is None else outcome.judged.loss,
            clean_loss=self.clean.loss,
            seconds=round(outcome.seconds, 2),
            clean_seconds=round(self.clean.seconds, 2),
            ok=not wrong,
            why=why or outcome.why,
            wrong=wrong,
            seed=self.settings.seed,
            data=job.data.source,
            strategy=job.strategy.name,
            workers=job.workers,
            servers=job.servers,
            copies=job.copies,
            steps=outcome.steps,
            rollbacks=self.rollbacks,
            model=model,
            newer=newer,
            voids=self.voids,
            healed=[node.healed() for node in self.hit],
            throughput=[(round(at, 2), round(rate)) for at, rate in board.throughput],
            losses=[(round(at, 2), loss) for at, loss in board.losses],
        )
