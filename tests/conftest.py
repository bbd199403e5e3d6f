"""Where a test that needs a card is skipped, or RabbitMQ, or one of files alone on servers, here and nowhere else.

And in which order cores get their files.
"""

import atexit
import gc
import os
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.rabbitmq import RabbitMQ

# As the marker `embedded`, where the test's own file does not say it.
OF_FILES_ALONE = {
    "test_nor_where_it_has_lost_the_database_between_the_row_and_the_delete": (
        "an object store does not tell equal bytes of one second apart"
    ),
}


def pytest_configure(config: pytest.Config) -> None:
    """Deal files out as they are collected: end to end first, units last.

    pytest-xdist would begin with those of most tests. The last ones, of a test or two, are builds of a minute, and a
    core that has no more of them waits for the other.
    """
    config.addinivalue_line("markers", "embedded(reason): of SQLite or directories alone, not run on servers")
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without the garbage collector, which would take two seconds of five to find nothing.

    All tests and what they import stay to the end: later collections, also those that tests ask for, pass them by.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        atexit.register(gc.unfreeze)  # extensions complain of what the last collection does not free


@pytest.hookimpl(trylast=True)  # after `-m` and `-k` have chosen
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    _skip_without_cards(items)
    if os.environ.get("AOT_TEST_STACK") == "servers":  # `tests.stack`
        for item in items:
            marker = item.get_closest_marker("embedded")
            reason = marker.args[0] if marker is not None else OF_FILES_ALONE.get(item.name)
            if reason is not None:
                item.add_marker(pytest.mark.skip(reason=f"of files alone: {reason}"))


@pytest.fixture(scope="session")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[RabbitMQ]":
    """A RabbitMQ of its own, from the first test that asks on. `.ci/run` installs it."""
    from tests.rabbitmq import RabbitMQ, find_script

    if find_script() is None:
        pytest.skip("no RabbitMQ: install Debian's rabbitmq-server")
    with RabbitMQ(tmp_path_factory.mktemp("rabbitmq")) as node:
        yield node


def _skip_without_cards(items: list[pytest.Item]) -> None:
    marked = [(item, marker) for item in items if (marker := item.get_closest_marker("gpu")) is not None]
    if not marked:
        return  # torch costs seconds to import
    found = _count_cards()
    for item, marker in marked:
        wanted = marker.kwargs.get("cards", 1)
        if found == 0:
            item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU"))
        elif found < wanted:
            item.add_marker(pytest.mark.skip(reason=f"{wanted} NVIDIA GPUs wanted, {found} found"))


def _count_cards() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0
