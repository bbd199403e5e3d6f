"""Mega-Cache: what torch writes is read without unpickling, what torch would be led astray by is refused."""

import base64
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aot.bundle.paths import why_unsafe_together
from aot.capture.megacache import Saved, SavedKind, entry_at, join, place_of, split
from aot.errors import MalformedDocument

KEY = "fab3xk7wlzm4o2ucahbnfnkqfjkw5wq4xhq5jkfmvwcrg2t2gdkx"
ENTRIES = (
    Saved(SavedKind.INDUCTOR, KEY, b"\x80\x04graph"),
    Saved(SavedKind.AOT_AUTOGRAD, "a" + KEY[1:], b"\x80\x04autograd"),
    Saved(SavedKind.AUTOTUNE, "xk/cxkq.best_config", b'{"XBLOCK": 64}'),
    Saved(SavedKind.PGO, "job:rank:0:11:model.py/forward", b"\x80\x04state"),
    Saved(SavedKind.PRECOMPILE, "3" * 64, b"\x80\x04entry"),
)


def a_blob(*sections: tuple[str, list[tuple[str, bytes]]], version: int = 1) -> bytes:
    """As torch writes it, by the description of its format and not by ours."""

    def sized(content: bytes) -> bytes:
        return len(content).to_bytes(8, "big") + content

    def text(words: str) -> bytes:
        return sized(base64.b64encode(words.encode()))

    body = version.to_bytes(8, "big")
    for kind, several in sections:
        body += text(kind) + len(several).to_bytes(8, "big")
        body += b"".join(text(key) + sized(content) for key, content in several)
    return zlib.crc32(body).to_bytes(4, "big") + body


def test_a_blob_is_split_into_its_entries() -> None:
    blob = a_blob(*((entry.kind.value, [(entry.key, entry.content)]) for entry in ENTRIES))
    assert split(blob) == ENTRIES
    assert join(ENTRIES) == blob


def test_entries_lie_where_torch_keeps_them() -> None:
    assert [place_of(entry) for entry in ENTRIES] == [
        f"fxgraph/ab/{KEY}/{place_of(ENTRIES[0]).rpartition('/')[2]}",
        f"aotautograd/a{KEY[1:]}/{place_of(ENTRIES[1]).rpartition('/')[2]}",
        "xk/cxkq.best_config",
        "dynamo/code_state_job_rank_0_11_model.py_forward.pkl",
        f"dynamo/{'3' * 64}/entry",
    ]
    assert why_unsafe_together(place_of(entry) for entry in ENTRIES) is None


def test_files_of_a_cache_directory_become_entries_again() -> None:
    for entry in ENTRIES:
        key = entry.key if entry.kind is SavedKind.PGO else ""
        assert entry_at(place_of(entry), entry.content, code_state_key=key) == entry
    for place in ("ab/cab.cpp", "ab/cab.so", "fxgraph/ab", "dynamo/code_state_x.pkl", "triton/0/x/k.cubin"):
        assert entry_at(place, b"") is None


def test_sections_of_a_kind_that_come_twice_are_all_kept_and_equal_entries_once() -> None:
    one, two = (KEY, b"first"), (KEY, b"second")
    found = split(a_blob(("inductor", [one]), ("aot_autograd", [("a" * 8, b"x")]), ("inductor", [one, two])))
    assert [(entry.kind.value, entry.content) for entry in found] == [
        ("inductor", b"first"),
        ("aot_autograd", b"x"),
        ("inductor", b"second"),
    ]
    assert len(split(join(found))) == 3


@pytest.mark.parametrize("kind", ["inductor", "aot_autograd", "precompile", "autotune", "pgo"])
@pytest.mark.parametrize(
    "key",
    [
        "../../etc/passwd",
        "..",
        ".",
        "",
        "/etc/cron.d/x",
        "a/../../b.best_config",
        "abc\0def",
        "abc\ndef",
        "x" * 300,
        "..\\..\\windows",
    ],
)
def test_keys_that_lead_elsewhere_are_refused(kind: str, key: str) -> None:
    if kind == "pgo" and "\0" not in key and "\n" not in key and len(key) < 200:
        # torch itself makes one name of these: what is left leads nowhere.
        [entry] = split(a_blob((kind, [(key, b"x")])))
        assert place_of(entry).count("/") == 1
        return
    with pytest.raises(MalformedDocument, match="cannot be used"):
        split(a_blob((kind, [(key, b"x")])))


@pytest.mark.parametrize("key", ["NUL", "nul.x", "Con", "COM1", "lpt9.best_config"])
def test_names_of_devices_are_refused(key: str) -> None:
    with pytest.raises(MalformedDocument, match="is a device"):
        split(a_blob(("inductor", [(key, b"x")])))
    with pytest.raises(MalformedDocument, match="is a device"):
        split(a_blob(("autotune", [(f"ab/{key.partition('.')[0]}.best_config", b"x")])))


@pytest.mark.parametrize("key", ["cxkq.best_config", "a/b/c.best_config", "ab/cxkq.so", "ab/.."])
def test_a_tuned_choice_is_one_file_in_one_directory(key: str) -> None:
    with pytest.raises(MalformedDocument, match="cannot be used"):
        split(a_blob(("autotune", [(key, b"{}")])))


def with_sum(body: bytes) -> bytes:
    return zlib.crc32(body).to_bytes(4, "big") + body


WHOLE = a_blob(("inductor", [(KEY, b"content")]))


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "checksum"),
        (b"\x80\x04pickle", "checksum"),
        (WHOLE[:-1], "checksum"),
        (WHOLE + b"x", "checksum"),
        (with_sum(WHOLE[4:-1]), "ends in the middle"),
        (with_sum(WHOLE[4:] + b"x"), "ends in the middle"),
        (with_sum(WHOLE[4:12] + (1 << 63).to_bytes(8, "big")), "ends in the middle"),
        (a_blob(("inductor", [(KEY, b"x")]), version=2), "has version 2"),
        (a_blob(("future", [(KEY, b"x")])), "of kind 'future'"),
        (with_sum(WHOLE[4:12] + (4).to_bytes(8, "big") + b"!!!!"), "no base64"),
    ],
)
def test_what_torch_would_not_write_is_refused(content: bytes, text: str) -> None:
    with pytest.raises(MalformedDocument, match=text):
        split(content)


@given(st.binary(max_size=200))
def test_any_bytes_are_entries_or_refused(body: bytes) -> None:
    try:
        found = split(with_sum((1).to_bytes(8, "big") + body))
    except MalformedDocument:
        return
    assert split(join(found)) == found
