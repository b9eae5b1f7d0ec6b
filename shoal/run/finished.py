"""A finished run: its model and figures, in memory or read back from its folder."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from shoal.errors import Invalid
from shoal.events import RunEvent, read_run
from shoal.job import Job

if TYPE_CHECKING:
    from shoal.models.trained import Trained, TrainedModule


@dataclass(slots=True, eq=False)
class Run:
    """A finished run: model, summary, events, folder."""

    job: Job
    model: Trained | TrainedModule | None
    summary: dict[str, Any]
    events: list[RunEvent] = field(repr=False)
    folder: Path | None = None
    rescued: str = ""  # why ``folder`` is a temporary one instead of ``out``

    def plot(self, path: str | Path | None = None) -> Any:
        """A figure of the losses (pip install 'shoal[view]'), written to ``path`` if given."""
        from shoal.views.plots import loss

        try:
            return loss(self.events, path)
        except OSError as error:
            raise Invalid(f"cannot write {path}: {error.strerror}: choose another place") from None

    @classmethod
    def load(cls, folder: str | Path) -> Run:
        """Read a run folder back."""
        from shoal.models.trained import trained

        folder = Path(folder)
        try:
            summary = msgspec.json.decode((folder / "summary.json").read_bytes())
            events = read_run(folder / "events.jsonl")
        except FileNotFoundError as error:
            name = Path(str(error.filename)).name
            raise Invalid(f"{folder} has no {name}: it is not a run, or one that has not ended") from None
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise Invalid(f"{folder} cannot be read: {error}") from None
        model = trained(folder / "model.safetensors") if (folder / "model.safetensors").exists() else None
        return cls(Job.load(folder / "job.toml"), model, summary, events, folder)
