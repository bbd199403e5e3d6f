"""Full collections wait until a model is loaded, and the collector is left as it was found."""

import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest

from aot.pause import NEVER, YOUNG_OBJECTS, no_full_collection

THRESHOLDS = (700, 10, 10)


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    found = gc.get_threshold()
    gc.set_threshold(*THRESHOLDS)
    yield
    gc.set_threshold(*found)


def test_no_full_collection_is_due_inside_and_the_thresholds_are_put_back() -> None:
    with no_full_collection():
        assert gc.get_threshold() == (YOUNG_OBJECTS, 10, NEVER)
    assert gc.get_threshold() == THRESHOLDS


def test_they_are_put_back_after_an_error() -> None:
    with pytest.raises(KeyError), no_full_collection():
        raise KeyError
    assert gc.get_threshold() == THRESHOLDS


def test_a_nested_block_changes_nothing() -> None:
    with no_full_collection():
        with no_full_collection():
            pass
        assert gc.get_threshold()[2] == NEVER
    assert gc.get_threshold() == THRESHOLDS


def test_blocks_that_overlap_end_where_they_began() -> None:
    one, other = no_full_collection(), no_full_collection()
    one.__enter__()
    other.__enter__()
    one.__exit__(None, None, None)
    other.__exit__(None, None, None)
    assert gc.get_threshold() == THRESHOLDS


def test_thresholds_that_were_set_meanwhile_stay() -> None:
    with no_full_collection():
        gc.set_threshold(123, 4, 5)
    assert gc.get_threshold() == (123, 4, 5)


def test_a_collector_that_is_switched_off_stays_so() -> None:
    gc.set_threshold(0, 10, 10)
    with no_full_collection():
        assert gc.get_threshold()[0] == 0
    assert gc.get_threshold() == (0, 10, 10)


def test_a_larger_young_generation_is_kept() -> None:
    gc.set_threshold(2 * YOUNG_OBJECTS, 10, 10)
    with no_full_collection():
        assert gc.get_threshold() == (2 * YOUNG_OBJECTS, 10, NEVER)


def count_full_collections(statement: str) -> int:
    """Run `statement` in a fresh process whose collector is eager, and count its full collections."""
    code = (
        "import gc, aot\nfull = []\n"
        "gc.callbacks.append(lambda phase, about: full.append(1) if about['generation'] == 2 else None)\n"
        f"gc.collect()\ndel full[:]\ngc.set_threshold(50, 1, 1)\n{statement}\ncount = len(full)\nprint(count)"
    )
    return int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def test_importing_the_loader_causes_no_full_collection() -> None:
    assert count_full_collections("import aot.runtime.pod") > 0, "the collector of this test is not eager enough"
    assert count_full_collections("aot.load") == 0
