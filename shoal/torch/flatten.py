"""Maps the parameters of a module to the rows of one table, and back.

Only parameters that the optimizer has and that need a gradient are sent, tied ones once. Frozen
ones stay local; their checksum is in the description, so that differences between workers are
detected. Servers compute in float32: half precision is rounded on its way into the module, double
precision is refused.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence

import numpy as np
import torch

from shoal.errors import BadValues, Invalid
from shoal.keys import Values
from shoal.models.torch_module import WIDTH

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_LARGE = 65_536  # tables with at least this many parameters have wide rows
_ABOUT = 16_384  # most characters: it is in every view of the cluster


class FlatParameters:
    def __init__(self, model: torch.nn.Module, optimized: Sequence[torch.Tensor]) -> None:
        named = dict(model.named_parameters())  # tied ones once
        wanted = {id(one) for one in optimized}
        strange = len(wanted - {id(one) for one in named.values()})
        if strange:
            raise Invalid(f"the optimizer has {strange} parameters that the model lacks: give it model.parameters()")
        for name, one in named.items():
            if isinstance(one, torch.nn.parameter.UninitializedParameter):
                raise Invalid(f"{name} has no shape yet: run one batch through the model before it is distributed")
        self.names = [name for name, one in named.items() if one.requires_grad and id(one) in wanted]
        if not self.names:
            raise Invalid("no parameter of the model is trained: give the optimizer some that need a gradient")
        self.parameters = [named[name] for name in self.names]
        for name, one in zip(self.names, self.parameters, strict=True):
            if one.dtype not in _DTYPES:
                raise Invalid(f"{name} is {one.dtype}, and the servers keep float32: call model.float() first")
        self._needed = [(name, one, one.requires_grad) for name, one in named.items() if id(one) in wanted]
        self._sizes = [one.numel() for one in self.parameters]
        self._device = self.parameters[0].device
        self.size = sum(self._sizes)
        self.width = WIDTH if self.size >= _LARGE else 1
        self.rows = -(-self.size // self.width)
        # padding of the last row
        self._rest = torch.zeros(self.rows * self.width - self.size, device=self._device)
        self.about = _about(named, self.names)

    def weights(self) -> Values:
        with torch.no_grad():
            values = self._joined([one.detach() for one in self.parameters])
        if (name := self.blame(values)) is not None:
            raise BadValues(f"{name} is not finite (NaN or infinite): give the model weights that are")
        return values

    def gradients(self) -> Values:
        """All gradients in a new array (one in transit is never overwritten). None counts as 0."""
        found: list[torch.Tensor] = []
        for name, one in zip(self.names, self.parameters, strict=True):
            gradient = torch.zeros_like(one) if one.grad is None else one.grad.detach()
            if gradient.layout != torch.strided:
                raise Invalid(
                    f"the gradient of {name} is sparse, and its table is dense: say sparse=False, or take "
                    "shoal.torch.Embedding, whose rows travel one by one"
                )
            found.append(gradient)
        return self._joined(found)

    def put(self, weights: Values) -> None:
        flat = torch.empty(self.size)
        flat.numpy()[:] = weights.reshape(-1)[: self.size]
        pieces = torch.split(flat.to(self._device), self._sizes)
        with torch.no_grad():
            for one, piece in zip(self.parameters, pieces, strict=True):
                one.copy_(piece.view_as(one))

    def switched(self) -> str | None:
        return next((name for name, one, needed in self._needed if one.requires_grad != needed), None)

    def blame(self, values: Values) -> str | None:
        fine = np.isfinite(values).reshape(-1)
        if fine.all():
            return None
        name: str = self.names[int(np.searchsorted(np.cumsum(self._sizes), np.argmin(fine), "right"))]
        return name

    def _joined(self, tensors: list[torch.Tensor]) -> Values:
        flat = torch.cat([*(one.to(self._device, torch.float32).reshape(-1) for one in tensors), self._rest])
        values: Values = flat.cpu().numpy().reshape(self.rows, self.width)
        return values

    def difference(self, theirs: str) -> str:
        """The first difference to ``theirs``, another worker's description; empty if none."""
        if theirs == self.about:
            return ""
        pairs = zip([*self.about.split("\n"), "nothing"], [*theirs.split("\n"), "nothing"], strict=False)
        return next((f"{mine} here, {other} there" for mine, other in pairs if mine != other), "their number")


def _about(named: dict[str, torch.nn.Parameter], trained: Sequence[str]) -> str:
    """Names and shapes, a line each, with checksums of frozen parameters."""
    lines = []
    for name, one in named.items():
        line = f"{name} {'x'.join(map(str, one.shape)) or '1'}"
        if name not in trained:
            flat = one.detach().cpu().reshape(-1).view(torch.uint8).numpy()
            line += f" (not trained, checksum {zlib.crc32(flat.tobytes()):08x})"
        lines.append(line)
    text = "\n".join(lines)
    if len(text) <= _ABOUT:
        return text
    return f"{len(lines)} parameters with the digest {hashlib.sha256(text.encode()).hexdigest()[:16]}"
