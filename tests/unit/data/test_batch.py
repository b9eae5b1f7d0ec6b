"""Global ids become places in a short list, and the scratch memory is clean afterwards.

It is clean even if a batch was refused.
"""

from __future__ import annotations

import numpy as np
import pytest

from shoal.data.batch import Batch, Localiser
from shoal.errors import Invalid


def batch_of(*rows: list[int]) -> Batch:
    indptr = np.concatenate(([0], np.cumsum([len(row) for row in rows]))).astype(np.int64)
    columns = np.array([column for row in rows for column in row], np.uint32)
    return Batch(indptr, columns, None, np.zeros(len(rows), np.float32))


def test_keys_are_sorted_and_columns_are_places_among_them() -> None:
    local = Localiser(1_000).local(batch_of([7, 900], [7, 64]), bias=False)
    assert local.keys.tolist() == [7, 64, 900]
    assert local.columns.tolist() == [0, 2, 0, 1]
    assert (len(local), local.nonzeros) == (2, 4)
    assert local.nbytes == 3 * 8 + 3 * 8 + 4 * 4 + 2 * 4


def test_the_bias_is_the_last_key_and_stands_in_no_row() -> None:
    local = Localiser(1_000).local(batch_of([999], []), bias=True)
    assert local.keys.tolist() == [999, 1_000]
    assert local.columns.tolist() == [0]


def test_rows_without_features_have_no_keys() -> None:
    assert Localiser(5).local(batch_of([], []), bias=False).keys.tolist() == []
    assert Localiser(5).local(batch_of([]), bias=True).keys.tolist() == [5]


# These sizes scan all words, the groups, or the tops.
@pytest.mark.parametrize("features", [70, 2**17, 2**31])
def test_a_column_past_the_last_feature_is_refused_and_leaves_no_trace(features: int) -> None:
    localiser = Localiser(features)
    with pytest.raises(Invalid, match="load the set again"):
        localiser.local(batch_of([3, features, 5]), bias=False)
    assert localiser.local(batch_of([4, features - 1]), bias=False).keys.tolist() == [4, features - 1]


def test_a_feature_space_that_ids_cannot_number_is_refused() -> None:
    for features in (0, 2**32):
        with pytest.raises(Invalid, match="hash_bits"):
            Localiser(features)


@pytest.mark.parametrize("features", [70, 2**17, 2**31])
def test_the_scratch_is_left_as_it_was_found(features: int) -> None:
    localiser = Localiser(features)
    localiser.local(batch_of([0, 3], [1, features - 1]), bias=True)
    marked = (localiser._ranks[:, 0], localiser._groups, localiser._tops)
    assert not any(part[[0, -1]].any() for part in marked)
