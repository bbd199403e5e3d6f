"""The codec: whatever arrives where a string type belongs is an error with its place, never a fault."""

import pytest

from aot.compile.tuned import Measured
from aot.errors import MalformedDocument
from aot.schema.codec import FormatProbe, convert, decode
from aot.schema.spec import Blob


@pytest.mark.parametrize("value", ["{}", "[]", "1", "1.5", "true", "null", '"sha256:x"'])
def test_what_is_no_digest_is_refused_with_its_place(value: str) -> None:
    with pytest.raises(MalformedDocument) as refusal:
        decode(f'{{"digest":{value},"size_bytes":1}}', Blob)
    assert refusal.value.details == {"path": "$.digest"}


@pytest.mark.parametrize("value", [b"[" * 100_000, b'"\xff"'], ids=["deeper than Python goes", "no UTF-8"])
@pytest.mark.parametrize("content", [b'{"digest":%s', b'{"unknown":%s', b"%s"])
def test_what_no_decoder_can_read_is_refused_as_well(content: bytes, value: bytes) -> None:
    for kind in (Blob, FormatProbe, Measured):
        with pytest.raises(MalformedDocument, match="does not decode"):
            decode(content % value, kind)


def test_the_same_holds_for_plain_values() -> None:
    with pytest.raises(MalformedDocument) as refusal:
        convert({"digest": 7, "size_bytes": 1}, Blob)
    assert refusal.value.details == {"path": "$.digest"}
