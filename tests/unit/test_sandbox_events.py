"""Event lines reach the parent in order, whatever else is on the pipe."""

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from aot.sandbox import EVENTS_FD, ExitKind, SandboxKind, write_event
from aot.sandbox.events import LINE_BYTES, EventReader
from tests.sandbox_children import EACH_KIND, open_sandbox, run_python, some_limits

OPEN = f"import os, json, sys; fd = int(os.environ['{EVENTS_FD}'])\n"


def read(*chunks: bytes) -> tuple[list[Mapping[str, Any]], int]:
    events: list[Mapping[str, Any]] = []
    reader = EventReader(events.append)
    for chunk in chunks:
        reader.feed(chunk)
    reader.finish()
    return events, reader.garbled_lines


def test_lines_are_joined_over_chunks() -> None:
    assert read(b'{"a": ', b'1}\n{"b": 2}\n{"c"', b": 3}") == ([{"a": 1}, {"b": 2}, {"c": 3}], 0)


@pytest.mark.parametrize("line", [b"no json", b"[1]", b"\xff\xfe", b"[" * 50_000, b"1" * 5_000])
def test_what_is_no_object_is_counted_and_dropped(line: bytes) -> None:
    assert read(b'{"a": 1}\n' + line + b'\n\n{"b": 2}\n') == ([{"a": 1}, {"b": 2}], 1)


def test_a_line_without_an_end_does_not_fill_memory() -> None:
    events: list[Mapping[str, Any]] = []
    reader = EventReader(events.append)
    for _ in range(100):
        reader.feed(b"x" * LINE_BYTES)
        assert len(reader._partial) <= LINE_BYTES
    reader.feed(b'\n{"a": 1}\n')
    reader.finish()
    assert (events, reader.garbled_lines) == ([{"a": 1}], 1)


def test_events_are_written_whole_into_a_full_pipe() -> None:
    source, sink = os.pipe()
    written = {"text": "x" * 300_000}
    writer = threading.Thread(target=lambda: (write_event(sink, written), os.close(sink)))
    writer.start()
    with open(source, "rb") as file:
        text = file.read()
    writer.join()
    assert text.endswith(b'"}\n') and len(text) > 300_000


@EACH_KIND
def test_events_arrive_in_order_with_garbage_between(kind: SandboxKind) -> None:
    code = OPEN + (
        "for n in range(2000):\n"
        "    os.write(fd, json.dumps({'step': n}).encode() + b'\\n')\n"
        "    if n == 1000: os.write(fd, b'garbage\\n')\n"
    )
    events: list[Mapping[str, Any]] = []
    end = run_python(code, kind=kind, on_event=events.append)
    assert end.succeeded and end.garbled_lines == 1
    assert events == [{"step": n} for n in range(2000)]


def test_events_arrive_while_the_child_runs(tmp_path: Path) -> None:
    code = OPEN + ("import time\nos.write(fd, b'{}\\n')\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.01)\n")
    place = tmp_path / "seen"
    end = run_python(code, str(place), kind=SandboxKind.PROCESS, on_event=lambda _: place.touch())
    assert end.succeeded


@EACH_KIND
def test_events_of_a_crashed_child_are_delivered(kind: SandboxKind) -> None:
    events: list[Mapping[str, Any]] = []
    code = OPEN + "os.write(fd, b'{\"last\": true}\\n'); os.abort()"
    assert run_python(code, kind=kind, on_event=events.append).signal == "SIGABRT"
    assert events == [{"last": True}]


def test_a_flood_of_events_ends_the_child() -> None:
    code = OPEN + "while True: os.write(fd, b'{}\\n' * 1000)"
    end = run_python(code, kind=SandboxKind.PROCESS, on_event=lambda _: None, limits=some_limits(output_bytes=100_000))
    assert end.kind is ExitKind.TOO_MUCH_OUTPUT


@EACH_KIND
def test_without_a_listener_there_is_no_pipe(kind: SandboxKind) -> None:
    code = f"import os; print('{EVENTS_FD}' in os.environ, sorted(map(int, os.listdir('/proc/self/fd')))[:4])"
    assert run_python(code, kind=kind).stdout_tail == "False [0, 1, 2, 3]\n"  # 3 is the listing itself


@EACH_KIND
def test_several_children_at_once_do_not_mix(kind: SandboxKind) -> None:
    open_sandbox(kind)  # skips here, not in a thread
    got: dict[int, list[Mapping[str, Any]]] = {n: [] for n in range(6)}
    ends: dict[int, str] = {}

    def run(n: int) -> None:
        code = (
            OPEN + f"import time\nfor _ in range(20): os.write(fd, b'{{\"n\": {n}}}\\n'); time.sleep(0.005)\nprint({n})"
        )
        ends[n] = run_python(code, kind=kind, on_event=got[n].append, count_processes=True).stdout_tail

    threads = [threading.Thread(target=run, args=(n,)) for n in got]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == {n: [{"n": n}] * 20 for n in got}
    assert ends == {n: f"{n}\n" for n in got}
