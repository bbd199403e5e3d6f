"""What got lost between its upload and its submission is uploaded again, and nothing else is sent twice."""

import pytest

from aot.errors import BlobMissing
from aot.pipeline.pending import MOST_UPLOADS, after_upload
from aot.schema.digest import Digest

OURS, OTHERS = Digest.of(b"ours"), Digest.of(b"others")


def times(failures: int, *, digests: tuple[Digest, ...]) -> tuple[int, str]:
    """How often it was uploaded, and what came of it."""
    uploads: list[int] = []

    def send() -> str:
        if len(uploads) <= failures:
            raise BlobMissing("not there", details={"digests": list(digests)})
        return "submitted"

    try:
        return 0, after_upload(lambda: uploads.append(1), send, ours={OURS}) + f" after {len(uploads)}"
    except BlobMissing:
        return len(uploads), "missing"


@pytest.mark.parametrize("failures", range(MOST_UPLOADS))
def test_what_got_lost_is_uploaded_again(failures: int) -> None:
    assert times(failures, digests=(OURS,)) == (0, f"submitted after {failures + 1}")


@pytest.mark.parametrize(
    ("digests", "uploads"), [((OURS,), MOST_UPLOADS), ((OURS, OTHERS), 1), ((OTHERS,), 1), ((), 1)]
)
def test_but_not_for_ever_nor_where_another_upload_helps_nothing(digests: tuple[Digest, ...], uploads: int) -> None:
    assert times(9, digests=digests) == (uploads, "missing")
