"""The codec: whatever arrives where a string type belongs is an error with its place, never a fault."""

import pytest

from aot.errors import MalformedDocument
from aot.schema.codec import convert, decode
from aot.schema.spec import Blob


@pytest.mark.parametrize("value", ["{}", "[]", "1", "1.5", "true", "null", '"sha256:x"'])
def test_what_is_no_digest_is_refused_with_its_place(value: str) -> None:
    with pytest.raises(MalformedDocument) as refusal:
        decode(f'{{"digest":{value},"size_bytes":1}}', Blob)
    assert refusal.value.details == {"path": "$.digest"}


def test_the_same_holds_for_plain_values() -> None:
    with pytest.raises(MalformedDocument) as refusal:
        convert({"digest": 7, "size_bytes": 1}, Blob)
    assert refusal.value.details == {"path": "$.digest"}
