"""A registry whose disk is full: a real small one, in a mount namespace of its own, where the system allows that."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.embedded("the disk of a data directory")

ROOT = Path(__file__).parents[2]
OPENING = """
import os, subprocess, sys
from pathlib import Path

from aot.errors import StorageUnavailable
from aot.schema.spec import Blob
from aot.schema.wire.blobs import OpenUploadsRequest
from aot.schema.names import Namespace
from tests.builders import BYTES, a_blob, a_profile, a_source, a_spec
from tests.service import a_service

root = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(root)], check=True)
ballast = root / "ballast"


def fill(left):
    free = os.statvfs(root).f_bavail * os.statvfs(root).f_frsize
    ballast.write_bytes(b"x" * max(0, free - left))
"""

# The database lies on the full disk; the source is stored before it fills.
DATABASE = """
with a_service(root / "data") as service:
    service.register(a_profile())
    service.submit(a_spec("before"))
    fill(120_000)
    accepted, refusal = [], None
    for number in range(400):
        try:
            accepted.append(service.submit(a_spec(f"m{number}")).build.id)
        except StorageUnavailable as error:
            refusal = error
            break
    assert refusal is not None and accepted, (refusal, len(accepted))
    assert "disk is full" in refusal.message and "free space" in refusal.hint, (refusal.message, refusal.hint)
    for build in accepted:
        assert service.call("get_build", build=build).state == "queued"
    listed = service.call("list_builds", query={"limit": 500}).builds
    assert len(listed) == len(accepted) + 1, "what was refused left nothing"
    ballast.unlink()
    again = service.submit(a_spec(f"m{len(accepted)}"))
    assert again.created and service.claim("cpu-v3").attempt == 1
    integrity = service.deps.sessions
    with integrity.reading() as session:
        from sqlalchemy import text
        assert session.scalar(text("PRAGMA integrity_check")) == "ok"
print("done")
"""

# The directory of blobs lies on the full disk.
BLOBS = """
with a_service(root / "data") as service:
    service.register(a_profile())
    blob = a_blob(os.urandom(900_000))
    fill(600_000)
    links = service.call("open_uploads", OpenUploadsRequest(namespace=Namespace("default"), blobs=(blob,))).links
    (link,) = links
    answer = service.http.request("PUT", link.url, content=BYTES[blob.digest], headers=link.headers)
    assert answer.status_code == 503 and "No space left" in answer.text and "free space" in answer.text, answer.text
    assert not list((root / "data" / "blobs" / "incoming").iterdir()), "no half blob stays"
    assert service.deps.store.stat(blob.digest) is None
    ballast.unlink()
    answer = service.http.request("PUT", link.url, content=BYTES[blob.digest], headers=link.headers)
    assert answer.status_code == 201, answer.text
    assert service.deps.store.stat(blob.digest) == blob.size_bytes
print("done")
"""


@pytest.mark.parametrize("story", [DATABASE, BLOBS], ids=["database", "blobs"])
def test_a_full_disk_is_named_and_costs_nothing_that_was_accepted(tmp_path: Path, story: str) -> None:
    enter = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*enter, "mount", "-t", "tmpfs", "tmpfs", str(tmp_path)], capture_output=True).returncode:
        pytest.skip("this system allows no mount namespaces")
    done = subprocess.run(
        [*enter, sys.executable, "-c", OPENING + story, str(tmp_path)], capture_output=True, text=True, cwd=ROOT
    )
    assert done.stdout.splitlines()[-1:] == ["done"], done.stderr[-3000:]
