"""From what peers say of their run to what is told of it: each thing once, whoever says it and however often.

Accounts come from one peer after another, and one may know less than the one before: how far the run is only ever grows here. Who came,
who is gone, who leads and what was judged is told when it is first heard of.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from shoal.data.datasets import Dataset
from shoal.data.slots import Slots
from shoal.events import Elected, Evaluated, Gone, Joined, Progress, RunEvent
from shoal.job import Job
from shoal.schedule.stop_rules import StopDecision
from shoal.strategies.peers.mesh import is_over
from shoal.training.tracker import started
from shoal.wire.messages import RunProgress
from shoal.wire.messages.peers import EvaluationDone, PeerStatus

LEFT = "it left"
KINDS = ("compute", "communicate", "idle")  # what an account's seconds are, in its order
_TELL = 0.25  # seconds between two records of progress


class PeerEvents:
    """One run's."""

    def __init__(self, job: Job, slots: Slots, listener: Callable[[RunEvent], None]) -> None:
        self._job, self._slots, self._listener = job, slots, listener
        until = job.stop.steps
        self._limit, self._reason = StopDecision(job.stop).limit(slots.per_pass, until)
        self.names: dict[str, str] = {}  # of all that were ever here, by life
        self.why: dict[str, str] = {}  # a process ended, by life, as it was seen here
        self.gone: dict[str, str] = {}  # told
        self.lead = ""  # its life
        self.judged: list[EvaluationDone] = []  # told
        self.account: PeerStatus | None = None  # the furthest
        self.seconds = 0.0
        self.lost = 0
        self._before = 0  # evaluations of former lives of the run
        self._told: PeerStatus | None = None  # as progress
        self._told_at = -math.inf

    @property
    def evaluations(self) -> int:
        """So many are known: what comes after these is asked for."""
        return self.judged[-1].number + 1 if self.judged else self._before

    def goes_on_from(self, evaluations: int, seconds: float) -> None:
        """A run is taken up again."""
        self._before, self.seconds = evaluations, seconds

    def tell_started(self, dataset: Dataset, workers: int) -> None:
        self._listener(started(self._job, dataset, self.seconds, workers))

    @property
    def living(self) -> list[str]:
        """The names of those that are here."""
        return [name for life, name in self.names.items() if life not in self.gone]

    def hear(self, account: PeerStatus) -> list[EvaluationDone]:
        """What it says that is new; evaluations are told and returned."""
        self.seconds = max(self.seconds, account.seconds)
        for peer in account.peers:
            back = peer.life not in account.gone and peer.life in self.gone and not is_over(self.gone[peer.life])
            if back:  # it was silent, and it was not the one that gave way
                del self.gone[peer.life]
            if back or peer.life not in self.names:
                self.names[peer.life] = peer.name
                self._listener(Joined(seconds=self.seconds, name=peer.name, role="worker"))
        if not account.ended:  # then they all go
            for life, why in account.gone.items():
                self.tell_gone(life, why)
        if account.lead != self.lead and account.lead in self.names and account.lead not in self.gone:
            self._elected(account.lead)
        fresh = [one for one in account.judged if one.number >= self.evaluations]
        if self.account is None or (account.done, account.ended) >= (self.account.done, self.account.ended):
            self.account = account
        for one in sorted(fresh, key=lambda one: one.number):
            self._judged(one)
        if self.seconds - self._told_at >= _TELL:
            self.tell_progress()
        return fresh

    def tell_gone(self, life: str, why: str) -> None:
        """Once; what was seen of its process is better than what others say of its silence."""
        if life in self.gone:
            return
        known = self.why.get(life)
        why = known if known else why
        self.gone[life] = why
        if life not in self.names:
            return  # nobody was told that it came
        self.lost += why not in ("", LEFT)
        name = self.names[life]
        self._listener(Gone(seconds=self.seconds, name=name, role="worker", why=why or LEFT))

    def tell_progress(self) -> None:
        now, last = self.account, self._told
        if now is None or now is last:
            return
        rows = now.loss[1] - (last.loss[1] if last else 0)
        loss = now.loss[0] - (last.loss[0] if last else 0.0)
        before = last.spent if last else [0] * len(KINDS)
        spent = {kind: max(0, b - a) / 1e6 for kind, a, b in zip(KINDS, before, now.spent, strict=False)}
        self._told, self._told_at = now, self.seconds
        self._listener(
            Progress(
                seconds=self.seconds,
                passes=now.done / self._slots.per_pass,
                steps=now.done,
                examples=now.rows,
                train_loss=loss / rows if rows > 0 else None,
                workers=len(self.living),
                spent=spent,
            )
        )

    def course(self, over: str, failed: bool, ended: bool, counts: dict[str, int]) -> RunProgress:
        """How far it is, as a coordinator would say it."""
        now = self.account
        done = now.done if now else 0
        return RunProgress(
            done,
            done if ended and not failed and over != self._reason else self._limit,
            self._slots.per_pass,
            done,
            False,
            now.rows if now else 0,
            self.seconds,
            self.seconds,
            *(now.moved if now else (0, 0)),
            over,
            over if failed else "",
            ended,
            {},
            counts,
        )

    def _elected(self, life: str) -> None:
        before = self.lead
        self.lead = life
        why = ""
        if before:
            why = f"{self.names[before]} is gone: {self.gone[before] or LEFT}" if before in self.gone else ""
        self._listener(Elected(seconds=self.seconds, name=self.names[life], why=why))

    def _judged(self, one: EvaluationDone) -> None:
        self.judged.append(one)
        self.seconds = max(self.seconds, one.now)
        self._listener(
            Evaluated(
                seconds=one.now,
                number=one.number,
                passes=one.done / self._slots.per_pass,
                steps=one.done,
                examples=one.rows,
                train_loss=one.train,
                test_loss=math.inf if one.loss is None else one.loss,
                metrics=one.metrics,
                workers=one.workers,
                best=one.best,
                read=one.seconds,
                by=self.names.get(one.by, one.by),
            )
        )
