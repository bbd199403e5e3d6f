"""What a load leaves for later: room in the cache, and a receipt."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from aot.cache import LocalCache
from aot.config import Config
from aot.errors import RegistryUnreachable
from aot.runtime import pod
from aot.runtime.later import Task
from aot.schema.digest import Digest
from aot.schema.spec import Blob
from aot.schema.wire.workers import Outcome
from tests.builders import a_file, a_manifest, an_artifact, an_environment
from tests.simulator import RegistrySimulator, a_reference
from tests.unit.pod.pods import load


@dataclass
class AtOnce:
    """Runs what is left for later at once; `held`: when it is told to."""

    held: bool = False
    waiting: list[Task] = field(default_factory=list)

    def __call__(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            if self.held:
                self.waiting.append(task)
            else:
                task.run()


@pytest.fixture
def timer(monkeypatch: pytest.MonkeyPatch) -> AtOnce:
    timer = AtOnce()
    monkeypatch.setattr(pod, "run_later", timer)
    return timer


@pytest.fixture
def receipts(config: Config, timer: AtOnce) -> Config:
    """The same configuration, with receipts that are sent at once."""
    return replace(config, receipts=True)


# Afterwards


def test_a_load_that_fetched_makes_room_again_after_it_and_keeps_what_it_loaded(
    simulator: RegistrySimulator, config: Config, timer: AtOnce
) -> None:
    cache = LocalCache(config.cache_dir)
    older = Blob(digest=Digest.of(b"another model"), size_bytes=13)
    cache.ensure(older, lambda writer: writer.write(b"another model"))
    simulator.add(a_manifest())
    timer.held = True
    assert load(replace(config, cache_bytes=1)).bundle is not None
    assert cache.path_of(older.digest) is not None, "nothing is removed in the way of the first output"
    [task] = timer.waiting
    assert not task.at_exit, "a process that ends leaves it to the next one"
    task.run()
    assert cache.path_of(older.digest) is None
    assert cache.path_of(a_file().digest) is not None


def test_a_load_that_fetched_nothing_does_not_look_for_what_to_remove(
    simulator: RegistrySimulator, config: Config, timer: AtOnce
) -> None:
    simulator.add(a_manifest())
    load(config)
    timer.held = True
    load(config)
    assert timer.waiting == []


# Receipts


def test_a_receipt_tells_of_the_load(simulator: RegistrySimulator, receipts: Config) -> None:
    digest = simulator.add(a_manifest())
    load(receipts)
    [receipt] = simulator.receipts
    assert (receipt.reference, receipt.bundle, receipt.stale_tag) == (a_reference(), digest, False)
    assert receipt.environment == an_environment()
    assert receipt.load_seconds > 0


def test_a_receipt_is_not_lost_where_the_process_ends_first(
    simulator: RegistrySimulator, receipts: Config, timer: AtOnce
) -> None:
    simulator.add(a_manifest())
    timer.held = True
    load(receipts)
    assert [task.at_exit for task in timer.waiting] == [False, True]
    timer.waiting[1].run()
    assert len(simulator.receipts) == 1


def test_a_load_that_ends_eagerly_is_told_as_well(simulator: RegistrySimulator, receipts: Config) -> None:
    simulator.add(a_manifest(artifacts=(an_artifact(capability="cuda:sm_90"),)))
    load(receipts)
    [receipt] = simulator.receipts
    assert (receipt.bundle, receipt.outcome) == (None, Outcome.EAGER)
    assert "cuda:sm_90" in receipt.reasons[0]


def test_a_tag_resolved_without_the_registry_is_marked_stale(simulator: RegistrySimulator, receipts: Config) -> None:
    simulator.add(a_manifest())
    load(receipts)
    simulator.refuse(RegistryUnreachable("gone for a moment"), times=4)
    load(receipts)
    assert [receipt.stale_tag for receipt in simulator.receipts] == [False, True]


def test_a_receipt_that_cannot_be_sent_is_lost_quietly(simulator: RegistrySimulator, receipts: Config) -> None:
    simulator.add(a_manifest())
    load(receipts)
    simulator.unreachable = True
    assert load(receipts).bundle is not None


def test_no_receipt_is_sent_where_they_are_turned_off(simulator: RegistrySimulator, receipts: Config) -> None:
    simulator.add(a_manifest())
    load(replace(receipts, receipts=False))
    assert simulator.receipts == []
