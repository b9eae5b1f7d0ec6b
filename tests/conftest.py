"""For all tests: asserts of the suite in shoal.testing are shown as those of a test are."""

import pytest

pytest.register_assert_rewrite("shoal.testing.conformance", "shoal.testing.watch")
