"""A server or a worker for a cluster that is elsewhere, in this very process: one address is enough.

What the run is about is asked for there, and comes as plain data. Rows are read on this host, by the names in the job, and
compared: a set that is not there, or is another one, is an error here, and is told there. Code that the job names is imported only
if this host's operator names it, too.

A node ends when the run does, when it is let go, and when the coordinator has been silent for longer than a restart takes.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import time
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from shoal import limits
from shoal.errors import ClusterError, Invalid, ShoalError, Unanswered
from shoal.inspect.status import (
    StatusClient,
    address_of,
    look_at,
    safety_for,
)
from shoal.job import Job
from shoal.launch.addresses import advertised, beside, new_name
from shoal.launch.process_main import prepare
from shoal.launch.processes import short_folder
from shoal.launch.server_process import ServerProcess
from shoal.launch.silence import Silence
from shoal.launch.user_modules import allowed
from shoal.nodes.drainable import DrainableServer
from shoal.nodes.loop import Loop
from shoal.wire import messages as m
from shoal.wire.zmq import ZmqTransport

if TYPE_CHECKING:
    from shoal.data.datasets import Dataset
    from shoal.nodes.trainer import Trainer

ANSWER = 5.0  # seconds for the coordinator to say what is going on; then that it does not is told,
LATER = 60.0  # and again, ever more seldom: so many seconds apart at last
Role = Literal["server", "worker"]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class JoinTerms:
    """How a node of this host takes part."""

    where: str  # the coordinator's address, or the folder of a run on this machine
    name: str = ""  # empty: one that no other has
    listen: str = ""  # of a server: where others call it; empty: on the way to the coordinator
    advertise: str = ""
    modules: Sequence[str] = ()  # code that may be imported
    data: str = ""  # of a worker: where the rows are on this host, if not where the job says
    patience: float | None = None  # seconds without a word from the coordinator; None: as that one says
    keys: str = ""  # the folder of this host's
    insecure: bool = False  # without any
    within: float = limits.HOSTS_WITHIN / limits.SECOND  # seconds for the coordinator to come up
    share: int = 1  # so many workers of this host share its memory


class RemoteNode:
    """One that takes part, and how it is asked to stop."""

    def __init__(self, terms: JoinTerms, role: Role, say: Say = lambda text: None) -> None:
        self.terms, self.role, self.say = terms, role, say
        self.address = address_of(terms.where)
        self.safety = safety_for(terms.where, terms.keys, terms.insecure)
        self.name = terms.name or self.safety.named(new_name(role), role)
        self.asked = False  # to leave
        self._leave: Callable[[int], None] | None = None

    def leave(self, number: int) -> None:
        """Of a signal: the first asks to go in order, the second ends it at once."""
        if self.asked:
            raise SystemExit(128 + number)
        self.asked = True
        if self._leave is None:  # nothing has begun
            raise SystemExit(128 + number)
        self.say(f"{self.name} leaves in order (again: at once)")
        self._leave(number)

    def run(self) -> str:
        """To its end; says how that came. Raises what went wrong."""
        address = self.address
        with contextlib.closing(look_at(address, self.safety)) as looking:
            about = self._about(looking, address)
            said = tomllib.loads(about.job).get("launch", {})  # of all of them, as the job says
            self.safety = self.safety.checking(said.get("checksums") is not False)
            self._check_name(looking)
            if self.role == "server":
                _check_modules(about, self.terms.modules)
                return self._serve(address)
            return self._work(address, looking, about)

    def _check_name(self, looking: StatusClient) -> None:
        """Before anything is said by that name: the coordinator would refuse it, but answers to its owner would come here meanwhile."""
        with contextlib.suppress(Unanswered):
            for one in looking.look().members if self.terms.name else ():
                if one.name == self.name and "server" in (one.role, self.role) and not one.suspected:
                    raise ClusterError(
                        f"the name {self.name!r} is taken by a {one.role} that is alive: choose another (--name)"
                    )

    def _about(self, looking: StatusClient, address: str) -> m.Described:
        about = self._ask(looking, address)
        if about.ended:
            raise ClusterError(f"the run at {address} is over: nobody is needed any more")
        return about

    def _ask(self, looking: StatusClient, address: str) -> m.Described:
        """Hosts are started in any order, and a coordinator that packs its data first takes its time."""
        why = "it may still be packing its data; or look at the address, and whether it lets this host in (keys)"
        deadline, pause = time.monotonic() + self.terms.within, ANSWER
        while True:
            try:
                return looking.describe(max(0.0, min(pause, deadline - time.monotonic())))
            except Unanswered:
                pause = min(2 * pause, LATER)
            if (left := deadline - time.monotonic()) <= 0:
                raise ClusterError(
                    f"the coordinator did not answer at {address} in {self.terms.within:g} s: start it, or look at the address; "
                    f"--within SECONDS waits longer"
                )
            self.say(f"{self.name}: nobody answers at {address} yet: {why}; it is tried for {left:.0f} s more")

    def _transport(self, bind: str | None = None, advertise: str = "") -> ZmqTransport:
        transport = ZmqTransport(self.name, bind, self.safety, advertise)
        try:
            transport.connect("coordinator", self.address)
        except BaseException:
            transport.close()
            raise
        return transport

    @property
    def _patience(self) -> int | Literal["timing"]:
        given = self.terms.patience
        return "timing" if given is None else int(given * limits.SECOND)

    # ------------------------------------------------------------ a server

    def _serve(self, address: str) -> str:
        prepare(self.terms.modules)
        with _sockets(address) as folder:
            bind = beside(address, self.terms.listen, self.name, folder)
            transport = self._transport(bind, advertised(bind, self.terms.advertise, address))
            serving = ServerProcess(self.name, secrets.token_hex(8), transport, self._patience, self.say, address)
            serving.keep_apart()
            self._leave = serving.leave
            self.say(f"{self.name} asks {address} to join; it listens at {transport.address}")
            serving.run()
            return _ended(serving.guest, "others have what it had")

    # ------------------------------------------------------------ a worker

    def _work(self, address: str, looking: StatusClient, about: m.Described) -> str:
        from shoal.launch.worker_process import WorkerSpec, cache_bytes, trainer_of

        if not about.job:
            raise Invalid(
                f"at {address} is a store, and no run that a worker could take part in: a program of your own works with it "
                f"(shoal.connect), or a run that uses its servers (shoal train)"
            )
        try:
            job, dataset = self._prepare(about)
        except ShoalError as error:
            looking.tell(m.Unfit(self.name, str(error)))
            raise
        transport = self._transport()
        try:
            orders = WorkerSpec(job.toml(), str(dataset.train.folder), cache_bytes(job, self.terms.share))
            trainer = trainer_of(self.name, secrets.token_hex(8), transport, orders)
            trainer.learner.settle(alone=True)
        except BaseException:
            transport.close()
            raise
        guest = DrainableServer(trainer.worker, trainer.worker.member, self._patience)
        self._leave = lambda number: trainer.leave()
        self.say(f"{self.name} works for {address}: {job.model.told}, {dataset.name}")
        _train(trainer, guest, Loop(guest, transport), Silence(guest, address, self.say))
        return _ended(guest, "it left" if self.asked or not trainer.over else "the run is over")

    def _prepare(self, about: m.Described) -> tuple[Job, Dataset]:
        """What is computed, with this host's own code and rows."""
        from shoal.data.datasets import load
        from shoal.training.preflight import import_own

        job = allowed(Job.of(tomllib.loads(about.job)), self.terms.modules)
        if self.terms.data:
            job = replace(job, data=replace(job.data, source=self.terms.data))
        import_own(job)
        dataset = load(job.data, job.seed, progress=lambda text: self.say(f"{self.name}: {text}"))
        _check_rows(dataset, about)
        return job, dataset


def serve(
    address: str,
    *,
    name: str = "",
    listen: str = "",
    advertise: str = "",
    modules: Sequence[str] = (),
    keys: str | os.PathLike[str] | None = None,
    insecure: bool = False,
    within: float = limits.HOSTS_WITHIN / limits.SECOND,
    say: Say = lambda text: None,
) -> str:
    """Be a server of the cluster whose coordinator is at this address (or whose run has this folder), until it is over.

    It has so many seconds to come up (``within``). Returns why it ended: the cluster is over, or this server was let go. What `shoal launch server` does, in this process.
    """
    own = "" if keys is None else os.fspath(keys)
    terms = JoinTerms(address, name, listen, advertise, modules, keys=own, insecure=insecure, within=within)
    return RemoteNode(terms, "server", say).run()


def _train(trainer: Trainer, guest: DrainableServer, loop: Loop, silence: Silence) -> None:
    try:
        done = trainer.start()
        while not done.done and not guest.end:
            loop.turn()
            silence.look()
        if done.done and done.error is not None:
            raise done.error
        loop.carry_out(trainer.worker.leave())
    finally:
        trainer.close()
        loop.close()


def _ended(guest: DrainableServer, otherwise: str) -> str:
    if guest.end == "deserted":
        raise ClusterError(f"{guest.name} ends: {guest.why}: see to it, and start this again")
    if guest.end == "refused":
        raise ClusterError(f"{guest.name} was refused: {guest.why}")
    return guest.why or otherwise


def _check_modules(about: m.Described, modules: Sequence[str]) -> None:
    """A server needs the updates and filters of a run, or it could not hold its tables."""
    if missing := [one for one in about.modules if ":" not in one and one not in modules]:
        options = " ".join(f"--modules {one}" for one in missing)
        raise Invalid(
            f"the run needs modules of its own ({', '.join(missing)}), and nothing is imported here because somebody else names it: "
            f"if you have them and trust them, say so ({options})"
        )


def _check_rows(dataset: Dataset, about: m.Described) -> None:
    from shoal.data.fingerprint import fingerprint

    mine, theirs = (dataset.train.rows, dataset.features), (about.rows, about.features)
    if mine != theirs:
        raise Invalid(
            f"the data are not the same: {mine[0]:,} rows of {mine[1]:,} features here, {theirs[0]:,} of {theirs[1]:,} there: bring "
            f"the same files to this host, or say where they are (--data)"
        )
    if (own := fingerprint(dataset.train.folder)) != about.fingerprint:
        raise Invalid(
            f"the data are not the same: as many rows and features here as there, but not these ({own} here, {about.fingerprint} "
            f"there): bring the same files to this host, or say where they are (--data)"
        )


@contextlib.contextmanager
def _sockets(coordinator: str) -> Iterator[str]:
    """A private folder for a socket that is a file, where the coordinator's is one, too."""
    if not coordinator.startswith("ipc:"):
        yield ""
        return
    folder = Path(short_folder(f"shoal-{os.getpid()}-{secrets.token_hex(4)}"))
    folder.mkdir(mode=0o700)
    try:
        yield str(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
