"""Runs a server or worker in this process for a coordinator on another host.

The coordinator describes the run as plain data. Rows are read on this host by the names in the job,
and their fingerprint is compared: missing or different data is an error here and is reported there.
Code that the job names is imported only if this host's operator names it, too.

The node ends with the run, when it is drained, or when the coordinator has been silent for longer
than a restart takes.
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
from shoal.client import connected
from shoal.errors import ClusterError, Invalid, ShoalError, Unanswered
from shoal.inspect.status import StatusClient, address_of, look_at, safety_for
from shoal.job import Job
from shoal.launch.addresses import advertised, join_address, new_name
from shoal.launch.process_main import prepare
from shoal.launch.processes import short_folder
from shoal.launch.server_process import ServerProcess, SilenceReport
from shoal.launch.user_modules import allowed, check_named
from shoal.nodes.drainable import DrainableNode
from shoal.wire import messages as m

if TYPE_CHECKING:
    from shoal.data.datasets import Dataset

ANSWER = 5.0  # seconds for the coordinator to answer before the first line about its silence
LATER = 60.0  # the longest time between two such lines
Role = Literal["server", "worker"]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class JoinTerms:
    where: str  # the coordinator's address, or the folder of a run on this machine
    name: str = ""  # empty: a unique one
    listen: str = ""  # a server's address; empty: on the route to the coordinator
    advertise: str = ""
    modules: Sequence[str] = ()  # code that may be imported
    data: str = ""  # a worker's rows on this host, if not where the job says
    patience: float | None = None  # seconds of silence to accept; None: the coordinator's timing
    keys: str = ""  # folder
    insecure: bool = False  # without keys
    within: float = limits.HOSTS_WITHIN / limits.SECOND  # seconds for the coordinator to start
    share: int = 1  # workers of this host that share its memory


class RemoteNode:
    """A joining node, and how a signal asks it to leave."""

    def __init__(self, terms: JoinTerms, role: Role, say: Say = lambda text: None) -> None:
        self.terms, self.role, self.say = terms, role, say
        self.address = address_of(terms.where)
        self.safety = safety_for(terms.where, terms.keys, terms.insecure)
        self.name = terms.name or self.safety.named(new_name(role), role)
        patience = terms.patience
        self._patience: int | Literal["timing"] = "timing" if patience is None else int(patience * limits.SECOND)
        self.asked_to_leave = False
        self._leave: Callable[[int], None] | None = None

    def leave(self, number: int, frame: object = None) -> None:
        """On a signal: the first asks it to leave in order, the second ends it at once."""
        if self.asked_to_leave:
            raise SystemExit(128 + number)
        self.asked_to_leave = True
        if self._leave is None:  # nothing has begun
            raise SystemExit(128 + number)
        self.say(f"{self.name} leaves in order (again: at once)")
        self._leave(number)

    def run(self) -> str:
        """Run to the end; returns why it ended. Raises what went wrong."""
        address = self.address
        with contextlib.closing(look_at(address, self.safety)) as looking:
            about = self._describe_run(looking, address)
            if about.ended:
                raise ClusterError(f"the run at {address} is over: no more nodes are needed")
            settings = tomllib.loads(about.job).get("launch", {})  # the job decides for all nodes
            self.safety = self.safety.checking(settings.get("checksums") is not False)
            self._check_name(looking)
            if self.role == "server":
                # for the updates and filters of the run's tables
                check_named([one for one in about.modules if ":" not in one and one not in self.terms.modules])
                return self._serve(address)
            return self._work(address, looking, about)

    def _check_name(self, looking: StatusClient) -> None:
        """Refuse a name in use before using it: the owner's answers would arrive here meanwhile."""
        with contextlib.suppress(Unanswered):
            for one in looking.look().members if self.terms.name else ():
                if one.name == self.name and "server" in (one.role, self.role) and not one.suspected:
                    raise ClusterError(f"the name {self.name!r} is a live {one.role}'s: choose another (--name)")

    def _describe_run(self, looking: StatusClient, address: str) -> m.Described:
        """Ask until it answers: hosts start in any order, and packing data takes time."""
        why = "it may still be packing its data; or check the address, and whether it accepts this host's key"
        deadline, pause = time.monotonic() + self.terms.within, ANSWER
        while True:
            try:
                return looking.describe(max(0.0, min(pause, deadline - time.monotonic())))
            except Unanswered:
                pause = min(2 * pause, LATER)
            if (left := deadline - time.monotonic()) <= 0:
                raise ClusterError(
                    f"the coordinator did not answer at {address} in {self.terms.within:g} s: start it, or check the address; "
                    f"--within SECONDS waits longer"
                )
            self.say(f"{self.name}: no answer from {address} yet: {why}; it tries for {left:.0f} s more")

    def _serve(self, address: str) -> str:
        prepare(self.terms.modules)
        with socket_folder(address) as folder:
            bind = join_address(address, self.terms.listen, self.name, folder)
            transport = connected(
                self.name, address, self.safety, bind, advertised(bind, self.terms.advertise, address)
            )
            serving = ServerProcess(self.name, secrets.token_hex(8), transport, self._patience, self.say, address)
            serving.keep_apart()
            self._leave = serving.leave
            self.say(f"{self.name} asks {address} to join; it listens at {transport.address}")
            serving.run()
            return _ended(serving.drainable, "other servers have its segments")

    def _work(self, address: str, looking: StatusClient, about: m.Described) -> str:
        from shoal.launch.worker_process import WorkerSpec, cache_bytes, run, trainer_of

        if not about.job:
            raise Invalid(
                f"{address} is a store without a run, so a worker has nothing to do there: use it from a program "
                f"(shoal.connect), or from a run that uses its servers (shoal train)"
            )
        try:
            job, dataset = self._prepare(about)
        except ShoalError as error:
            looking.tell(m.Unfit(self.name, str(error)))
            raise
        transport = connected(self.name, address, self.safety)
        try:
            orders = WorkerSpec(job.toml(), str(dataset.train.folder), cache_bytes(job, self.terms.share))
            trainer = trainer_of(self.name, secrets.token_hex(8), transport, orders)
            trainer.learner.settle(alone=True)
        except BaseException:
            transport.close()
            raise
        drainable = DrainableNode(trainer.worker, trainer.worker.member, self._patience)
        self._leave = lambda number: trainer.leave()
        self.say(f"{self.name} works for {address}: {job.model.told}, {dataset.name}")
        silence = SilenceReport(drainable, address, self.say)
        run(trainer, transport, silence.check, drainable)
        return _ended(drainable, "it left" if self.asked_to_leave or not trainer.over else "the run is over")

    def _prepare(self, about: m.Described) -> tuple[Job, Dataset]:
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
    """Serve the cluster at this address (or of this run folder) until it is over.

    The coordinator has ``within`` seconds to start. Returns why it ended: the cluster is over, or
    this server was drained. `shoal launch server` does the same.
    """
    own = "" if keys is None else os.fspath(keys)
    terms = JoinTerms(address, name, listen, advertise, modules, keys=own, insecure=insecure, within=within)
    return RemoteNode(terms, "server", say).run()


def _ended(drainable: DrainableNode, otherwise: str) -> str:
    if drainable.end == "deserted":
        raise ClusterError(f"{drainable.name} ends: {drainable.why}: check the coordinator, and start this again")
    if drainable.end == "refused":
        raise ClusterError(f"{drainable.name} was refused: {drainable.why}")
    return drainable.why or otherwise


def _check_rows(dataset: Dataset, about: m.Described) -> None:
    from shoal.data.csr_file import fingerprint

    mine, theirs = (dataset.train.rows, dataset.features), (about.rows, about.features)
    if mine != theirs:
        raise Invalid(
            f"the data differ: {mine[0]:,} rows of {mine[1]:,} features here, {theirs[0]:,} of {theirs[1]:,} there: "
            f"copy the same files to this host, or say where they are (--data)"
        )
    if (own := fingerprint(dataset.train.folder)) != about.fingerprint:
        raise Invalid(
            f"the data differ: as many rows and features, but other contents (fingerprint {own} here, "
            f"{about.fingerprint} there): copy the same files to this host, or say where they are (--data)"
        )


@contextlib.contextmanager
def socket_folder(address: str) -> Iterator[str]:
    """A private folder for a Unix socket of our own, if this address is one, too."""
    if not address.startswith("ipc:"):
        yield ""
        return
    folder = Path(short_folder(f"shoal-{os.getpid()}-{secrets.token_hex(4)}"))
    folder.mkdir(mode=0o700)
    try:
        yield str(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
