"""Compiles an update rule into kernels over a whole push, with the function inlined.

The kernels are written out as a module: the loops below, the rule's source, and that of everything
it refers to. The file is named by the hash of its text, so an edited function, helper or constant
is another file; numba's cache lies beside it and is never stale (numba alone looks at the age of
one file, not at what a function calls).

Without a cache folder (``shoal.files``), or without a source (a function made by exec), kernels
are compiled in memory. Nothing is compiled because of what a message contains: signatures are
spelled out, and only rules of this process come in here.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import threading
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from shoal import limits
from shoal.errors import Invalid
from shoal.files import cache_folder, replace_file
from shoal.store.table.function_source import JIT, FunctionSource
from shoal.store.table.update import UpdateRule, is_own
from shoal.user_code import ForkedCall

HEAD = '''"""Made by shoal from an update rule; the name of this file is the hash of its text.

numba {numba}, shoal.store.table.kernels {kernels}
"""

from collections import namedtuple as _shoal_namedtuple
from numba import float32 as _shoal_f4, float64 as _shoal_f8, int64 as _shoal_i8, uint64 as _shoal_u8
from numba import njit as _shoal_njit, void as _shoal_void
import numpy as _shoal_np
import shoal.store.table.kernels as _shoal_k

# No fastmath: copies must agree bit by bit. Division as in numpy: an error in the middle would leave half a push.
_shoal_options = dict(nogil=True, error_model="numpy", cache={cache})
_shoal_Settings = _shoal_namedtuple("Settings", {settings!r})
'''

ROWS = '''
@_shoal_njit(error_model="numpy")
def _shoal_wide(slab, row, word, width, gradients, i, settings):
    # Unsigned, since an index that might be negative would keep the compiler from using vectors.
    for c in range(_shoal_u8(width)):
        at = _shoal_u8(word) + c
        weight, state = _shoal_rule(_shoal_f8(slab[row, at]), ({read}), {gradient}, settings)
        slab[row, at] = _shoal_f4(weight){write}


@_shoal_njit(error_model="numpy")
def _shoal_rows(slab, rows, count, word, gradients, start, settings, scratch):
    """Update ``count`` rows with the gradients from ``start`` on.

    A row is its weights, from ``word`` on, then its state, one block of ``width`` after another; so are gradients of several
    numbers for each weight. Narrow rows go through scratch, column by column, so that the rule runs on vectors. Its columns
    lie BLOCK apart: the compiler sees that they do not overlap.
    """
    width = gradients.shape[1]{per}
    if width > {narrow}:
        for i in range(count):
            _shoal_wide(slab, _shoal_u8(rows[i]), word, width, gradients, _shoal_u8(start + i), settings)
        return
    column = scratch.reshape(-1)
    for c in range(_shoal_u8(width)):
        at = _shoal_u8(word) + c
        for i in range(_shoal_u8(count)):
            row = _shoal_u8(rows[i])
            column[i] = slab[row, at]{load}{bring}
        for i in range(_shoal_u8(count)):
            weight, state = _shoal_rule(column[i], ({taken}), {brought}, settings)
            column[i] = weight{kept}
        for i in range(_shoal_u8(count)):
            row = _shoal_u8(rows[i])
            slab[row, at] = _shoal_f4(column[i]){store}


@_shoal_njit(
    _shoal_void(_shoal_k.slab_out, _shoal_i8, _shoal_k.rows_in, _shoal_k.slab_in, _shoal_k.settings_in),
    **_shoal_options,
)
def push_rows(slab, word, places, gradients, given):
    """Update the given rows, each named once."""
    flat = slab.reshape(-1)
    settings = _shoal_Settings({given})
    size = min(len(places), _shoal_k.BLOCK)
    rows, scratch = _shoal_np.empty(size, _shoal_np.int64), _shoal_np.empty(({columns}, _shoal_k.BLOCK))
    for start in range(0, len(places), _shoal_k.BLOCK):
        count = min(_shoal_k.BLOCK, len(places) - start)
        for i in range(count):
            rows[i] = places[start + i]
        if len(flat) > _shoal_k.FAR:
            for i in range(count):
                _shoal_k.prefetch(flat, rows[i] * slab.shape[1])
        _shoal_rows(slab, rows, count, word, gradients, start, settings, scratch)
'''

KEYS = '''

@_shoal_njit(
    _shoal_i8(
        _shoal_k.keys_out, _shoal_k.slots_out, _shoal_k.slab_out, _shoal_i8, _shoal_k.keys_in,
        _shoal_k.slab_in, _shoal_k.settings_in, *_shoal_k.initial
    ),
    **_shoal_options,
)
def push_keys(index, slots, slab, used, keys, gradients, given, kind, first, second, seed):
    """Find the rows of a block of keys, the missing ones being born, and update them while they are in cache."""
    settings = _shoal_Settings({given})
    size = min(len(keys), _shoal_k.BLOCK)
    hashes, rows = _shoal_np.empty(size, _shoal_np.uint64), _shoal_np.empty(size, _shoal_np.int64)
    scratch = _shoal_np.empty(({columns}, _shoal_k.BLOCK))
    for start in range(0, len(keys), _shoal_k.BLOCK):
        count = min(_shoal_k.BLOCK, len(keys) - start)
        used = _shoal_k.place_block(
            index, slots, slab, used, keys, start, count, hashes, rows, gradients.shape[1]{per}, kind, first, second, seed
        )
        _shoal_rows(slab, rows, count, _shoal_k.KEY_WORDS, gradients, start, settings, scratch)
    return used
'''

RANGE = '''

@_shoal_njit(
    _shoal_void(_shoal_k.slab_out, _shoal_i8, _shoal_i8, _shoal_k.slab_in, _shoal_k.settings_in),
    **_shoal_options,
)
def push_range(slab, word, row, gradients, given):
    """Update as many rows as there are gradients, from ``row`` on."""
    settings = _shoal_Settings({given})
    if {columns} == 2 and slab.shape[1] == gradients.shape[1]:  # nothing but weights: one long row
        weights = slab[row : row + len(gradients)].reshape((1, -1))
        _shoal_wide(weights, _shoal_u8(0), 0, gradients.size, gradients.reshape((1, -1)), _shoal_u8(0), settings)
        return
    size = min(len(gradients), _shoal_k.BLOCK)
    rows, scratch = _shoal_np.empty(size, _shoal_np.int64), _shoal_np.empty(({columns}, _shoal_k.BLOCK))
    for start in range(0, len(gradients), _shoal_k.BLOCK):
        count = min(_shoal_k.BLOCK, len(gradients) - start)
        for i in range(count):
            rows[i] = row + start + i
        _shoal_rows(slab, rows, count, word, gradients, start, settings, scratch)
'''

NARROW = 7  # rows up to this width are updated column by column


_ANSWER = 65_536  # bytes of a trial's answer at most
_TRIED = (0.0, 1e-6, 1.0, 1e6, -1e-6, -1.0, -1e6)

_made: dict[str, ModuleType] = {}
_one_at_a_time = threading.Lock()  # CPython 3.11's parser is not thread-safe


def dense_kernels(rule: UpdateRule) -> Any:
    """The loops over dense rows: push_rows, and push_range(slab, word, row, gradients, given)."""
    return rule_kernels(rule, ROWS + RANGE)


def rule_kernels(rule: UpdateRule, loops: str) -> ModuleType:
    """The compiled loops of a rule, made at most once per process for the same text."""
    with _one_at_a_time:
        return _make(rule, loops)


def _make(rule: UpdateRule, loops: str) -> ModuleType:
    source = FunctionSource(rule.name)
    written = source.add(rule.function)  # refuses it before it is run
    _apart(rule, lambda: _try(rule))
    if not written:
        made = _in_memory(rule, _text(rule, f"\n_shoal_rule = {JIT[1:-1]}(_shoal_given)\n", loops, cache=False))
        _apart(rule, lambda: _try_compiled(rule, made))
        return made
    body = f"{source.text()}\n\n\n_shoal_rule = {rule.function.__name__}\n"
    text = _text(rule, body, loops, cache=True)
    if text not in _made:
        made = _on_disk(text) or _in_memory(rule, _text(rule, body, loops, cache=False))
        _apart(rule, lambda: _try_compiled(rule, made))
        _made[text] = made
    return _made[text]


def _apart(rule: UpdateRule, act: Callable[[], None]) -> None:
    """Try a user's rule in a fork first: one that hangs, exits or uses all memory is refused.

    What it does with other numbers than those tried is unknown: compiled, it runs in the server.
    """
    if is_own(rule):
        act()
        return

    def tried() -> bytes:
        act()
        return b"fine"

    try:
        ForkedCall(tried, limits.TRY_WITHIN / limits.SECOND, limits.TRY_MEMORY, _ANSWER).wait()
    except Invalid as error:
        said = str(error)
        raise Invalid(said if said.startswith("update ") else f"update {rule.name!r} cannot be used: {said}") from None


def _try_compiled(rule: UpdateRule, made: ModuleType) -> None:
    """Run the compiled rule on weights and gradients of all sizes."""
    if not hasattr(made, "push_rows"):  # Hogwild's racing loops: they run on arrays of their own
        return
    import numpy as np

    grid = np.array(_TRIED, np.float32)
    weights, gradients = (one.reshape(-1, 1) for one in np.meshgrid(grid, grid))
    slab = np.zeros((len(weights), 1 + rule.state), np.float32)
    slab[:, :1] = weights
    pushed = np.ascontiguousarray(np.repeat(gradients, rule.pushed, axis=1))
    made.push_rows(slab, 0, np.arange(len(slab)), pushed, np.array(rule.settings({}), np.float64))


def _text(rule: UpdateRule, body: str, loops: str, cache: bool) -> str:
    import numba

    from shoal.store.table import kernels

    blocks, last = range(1, rule.state + 1), rule.state + 1
    kinds = range(rule.pushed)
    return (
        HEAD.format(
            numba=numba.__version__,
            kernels=_hash_of(kernels.__file__),  # they are inlined too
            cache=cache,
            settings=tuple(rule.defaults),
        )
        + body
        + loops.format(
            narrow=NARROW,
            last=last,
            columns=last + rule.pushed,
            per="" if rule.pushed == 1 else f" // {rule.pushed}",
            gradient=_one_or_all([f"_shoal_f8(gradients[i, {_kind(j)}])" for j in kinds]),
            bring="".join(
                f"\n            {_column(last + j)} = gradients[_shoal_u8(start) + i, {_kind(j)}]" for j in kinds
            ),
            brought=_one_or_all([_column(last + j) for j in kinds]),
            read="".join(f"_shoal_f8(slab[row, at + _shoal_u8({j} * width)]), " for j in blocks),
            write="".join(
                f"\n        slab[row, at + _shoal_u8({j} * width)] = _shoal_f4(state[{j - 1}])" for j in blocks
            ),
            load="".join(f"\n            {_column(j)} = slab[row, at + _shoal_u8({j} * width)]" for j in blocks),
            taken="".join(f"{_column(j)}, " for j in blocks),
            kept="".join(f"\n            {_column(j)} = state[{j - 1}]" for j in blocks),
            store="".join(
                f"\n            slab[row, at + _shoal_u8({j} * width)] = _shoal_f4({_column(j)})" for j in blocks
            ),
            given=", ".join(f"given[{j}]" for j in range(len(rule.defaults))),
        )
    )


def _column(number: int) -> str:
    return f"column[i + _shoal_u8({number} * _shoal_k.BLOCK)]"


def _kind(number: int) -> str:
    """Where the numbers of this kind stand in a row of gradients."""
    return "c" if number == 0 else f"c + _shoal_u8({number} * width)"


def _one_or_all(numbers: list[str]) -> str:
    return numbers[0] if len(numbers) == 1 else f"({', '.join(numbers)})"


@lru_cache
def _hash_of(file: str) -> str:
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


def _try(rule: UpdateRule) -> None:
    """Run the function once: it must return a weight and as many states as it declares."""
    gradient = 1.0 if rule.pushed == 1 else (1.0,) * rule.pushed
    try:
        answer = rule.function(1.0, (0.0,) * rule.state, gradient, rule.settings({}))
    except (ArithmeticError, ValueError):
        return  # other numbers may work; compiled code gives infinity or NaN
    except (Exception, SystemExit) as error:
        raise Invalid(f"update {rule.name!r} failed on weight 1, state 0, gradient {gradient}: {error!r}") from error
    match answer:
        case (int() | float(), tuple() as state) if len(state) == rule.state:
            return
    raise Invalid(
        f"update {rule.name!r} returned {answer!r}: it declares state={rule.state}, so it returns "
        f"(weight, a tuple of {rule.state})"
    )


def _in_memory(rule: UpdateRule, text: str) -> ModuleType:
    from numba.core.errors import NumbaError

    module = ModuleType(f"shoal_update_{rule.name}")
    module.__dict__["_shoal_given"] = rule.function
    try:  # the text is ours and of a rule registered here: nothing came over the wire
        exec(compile(text, f"<update {rule.name}>", "exec"), module.__dict__)
    except NumbaError as error:
        raise Invalid(f"update {rule.name!r} cannot be compiled; numba says: {error}") from error
    return module


def _on_disk(text: str) -> ModuleType | None:
    """The module of this text, imported from the cache folder; None if that fails."""
    folder = cache_folder()
    if folder is None:
        return None
    name = hashlib.sha256(text.encode()).hexdigest()
    path = folder / f"{name}.py"
    try:
        if not path.exists() or path.read_text() != text:  # once: numba goes by its age
            replace_file(path, text.encode())
        spec = importlib.util.spec_from_file_location(f"shoal_update_{name}", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[module.__name__] = module
        spec.loader.exec_module(module)
    except Exception:
        # A full disk or a truncated cache: compile in memory. An error of the rule comes again
        # there.
        sys.modules.pop(f"shoal_update_{name}", None)
        return None
    return module
