"""The figures of `benchmarks.pull` and `benchmarks.resolve`: what is compared with what."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from aot.schema.digest import Digest
from aot.schema.spec import Blob
from benchmarks import pull
from benchmarks.many_artifacts import ARTIFACTS, FILES, digest_of, fill
from benchmarks.pull import HASHED, compare
from benchmarks.resolve import Window, bucket, summary
from registry.db import hot
from registry.db.session import open_sessions
from registry.storage import open_store


def a_tool(order: list[str], name: str, seconds: list[float]) -> Any:
    def run() -> dict[str, Any]:
        order.append(name)
        took = seconds[order.count(name) - 1]
        return {"seconds": took, "process_seconds": took + 1, "peak_bytes": int(took), "cpu_seconds": took}

    return run


def test_tools_take_turns_the_first_round_does_not_count_and_the_best_other_is_named() -> None:
    order: list[str] = []
    found = compare(
        {
            "ours": a_tool(order, "ours", [99, 4, 5, 6]),
            "curl": a_tool(order, "curl", [99, 8, 8, 8]),
            "obstore": a_tool(order, "obstore", [1, 2, 3, 10]),
            HASHED: a_tool(order, HASHED, [1, 10, 10, 10]),
        },
        rounds=3,
    )
    assert [order[place] for place in (0, 4, 8, 12)] == ["ours", "curl", "obstore", HASHED]
    assert (found["best_other"], found["ratio"], found["ratio_of_fastest"]) == ("obstore", 3 / 5, 2 / 4)
    assert (found["ratio_hashed"], found["peak_bytes"]) == (2.0, 6)


def test_the_bundle_has_200_blobs_of_500_megabytes() -> None:
    assert (len(pull.SIZES), sum(pull.SIZES)) == (200, 500_000_000)


def test_a_tool_that_leaves_too_few_bytes_is_no_measurement(tmp_path: Path) -> None:
    into = tmp_path / "into"
    into.mkdir()
    with pytest.raises(RuntimeError, match="left 0 bytes"):
        pull._run(["true"], into)
    with pytest.raises(RuntimeError, match="ended with 1"):
        pull._run(["false"], into)


def test_ratios_are_of_one_round_each_and_many_is_compared_with_few_and_bare() -> None:
    def windows(*pairs: tuple[float, float]) -> list[Window]:
        return [Window([1.0] * 98 + [p99] * 2, rate) for p99, rate in pairs]

    found = summary(
        {
            "few": windows((10, 1), (20, 1), (5, 1)),
            "many": windows((15, 50), (20, 60), (9, 80)),
            "bare": windows((1, 100), (1, 100), (1, 100)),
        }
    )
    assert (found["p99_ratio"], found["throughput_ratio"]) == (1.5, 0.6)


def test_the_bucket_of_the_benchmark_takes_a_registry_that_keeps_blobs_in_s3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bucket(tmp_path) as environ:
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        store = open_store(environ["AOT_BLOB_URL"], data_dir=tmp_path, public_url="http://unused")
        blob = Blob(digest=Digest.of(b"x"), size_bytes=1)
        link = store.download_link(blob, expires_in=timedelta(hours=1))
        assert link.url.startswith("http://127.0.0.1:") and "X-Amz-Signature=" in link.url


def test_a_filled_database_answers_as_a_registry_does(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'many.sqlite3'}"
    secret = fill(url, 30)
    assert secret.startswith("aot_")
    sessions = open_sessions(url)
    with sessions.reading() as session:
        assert session.scalar(text("SELECT count(*) FROM artifacts")) >= 30 * ARTIFACTS
        [found] = hot.resolve_tag("default", "model-29", "latest", reader=session)  # type: ignore[arg-type]
        assert found.digest == digest_of(29)
        listed = hot.blobs_of(found.digest, session)
    assert listed is not None and len(listed.blobs) == ARTIFACTS * FILES
    sessions.close()
