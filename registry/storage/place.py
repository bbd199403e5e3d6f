"""Where an object store is and how it is spoken to: `AOT_BLOB_URL=s3://bucket/prefix?name=value&...`.

| Name            | Default                 | Meaning                                                                 |
|-----------------|-------------------------|-------------------------------------------------------------------------|
| endpoint        | Amazon's                | the address at which the registry speaks to the store                   |
| public_endpoint | `endpoint`              | the address in links, where clients know the same store by another name |
| region          | where boto3 finds it    | part of every signature                                                 |
| style           | `path` with an endpoint | `path`: host/bucket/key; `virtual`: bucket.host/key; `auto`: boto3's    |
| sse             | the bucket's default    | `AES256`, `aws:kms`, `aws:kms:dsse`: how what is written is encrypted   |
| kms_key         | the account's           | the key of `aws:kms`, by id, ARN or alias                               |
| largest_put     | 5GiB                    | a larger blob is put in parts; S3 takes no more in one request          |
| part            | 64MiB                   | the size of a part, more where there would be over 1,000                |

Sizes are in bytes, or in MiB or GiB when they say so. What a value has in common with the URL's own syntax (`&`, `#`,
`+`, `%`) is percent-encoded.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self, TypeVar
from urllib.parse import parse_qsl, urlsplit

from aot.errors import InvalidConfig

MIB, GIB = 1 << 20, 1 << 30
# S3 User Guide, "Amazon S3 multipart upload limits"; and PutObject for the largest single PUT.
PUT_LIMIT_BYTES = 5 * GIB
PART_LEAST_BYTES, PART_LIMIT_BYTES = 5 * MIB, 5 * GIB
MOST_PARTS = 1000  # S3 takes 10,000; every part's link travels in one answer
SIZE_SHAPE = re.compile(r"([0-9]{1,15})(MiB|GiB)?")
UNITS = {None: 1, "MiB": MIB, "GiB": GIB}
HINT = "write `directory`, or s3://bucket/prefix?endpoint=URL&region=NAME; docs/deploy.md lists every name"

E = TypeVar("E", bound=StrEnum)


class Style(StrEnum):
    AUTO = "auto"
    PATH = "path"
    VIRTUAL = "virtual"


class Encryption(StrEnum):
    AES256 = "AES256"
    KMS = "aws:kms"
    KMS_TWICE = "aws:kms:dsse"


@dataclass(frozen=True)
class S3Place:
    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    public_endpoint: str | None = None
    region: str | None = None
    style: Style | None = None
    sse: Encryption | None = None
    kms_key: str | None = None
    largest_put_bytes: int = PUT_LIMIT_BYTES
    part_bytes: int = 64 * MIB

    @classmethod
    def parse(cls, url: str) -> Self:
        """Raises InvalidConfig, naming what is not known or not right."""
        parts = urlsplit(url)
        if parts.scheme != "s3" or not parts.netloc or parts.fragment:
            raise InvalidConfig(f"AOT_BLOB_URL is {url[:200]!r}, wanted s3://bucket/prefix?name=value", hint=HINT)
        place = cls(bucket=parts.netloc, prefix=parts.path.strip("/"), **_given(parts.query))
        if place.kms_key and place.sse not in (Encryption.KMS, Encryption.KMS_TWICE):
            raise _wrong("kms_key", place.kms_key, "sse=aws:kms beside it")
        return place

    @property
    def addressing_style(self) -> Style:
        # Buckets below an endpoint of one's own seldom have host names of their own.
        return self.style or (Style.PATH if self.endpoint else Style.AUTO)

    @property
    def key_prefix(self) -> str:
        return f"{self.prefix.strip('/')}/" if self.prefix.strip("/") else ""

    def part_bytes_of(self, size_bytes: int) -> int:
        """How large the parts of a blob of that size are; the last one may be smaller."""
        least = -(-size_bytes // MOST_PARTS)
        return max(self.part_bytes, -(-least // MIB) * MIB)


def _given(query: str) -> dict[str, Any]:
    """The settings under the names of the fields that they set."""
    found: dict[str, Any] = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name not in READERS:
            raise InvalidConfig(f"AOT_BLOB_URL names {name!r}, known are {', '.join(READERS)}", hint=HINT)
        field, read = READERS[name]
        if field in found:
            raise _wrong(name, text, "each name once")
        found[field] = read(name, text)
    return found


def _text(name: str, text: str) -> str:
    if not text or any(char <= " " for char in text):
        raise _wrong(name, text, "text without spaces")
    return text


def _address(name: str, text: str) -> str:
    try:
        parts = urlsplit(_text(name, text))
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not good or parts.query or parts.username is not None:
        raise _wrong(name, text, "http://host or https://host, with a port where it has one")
    return text.rstrip("/")


def _one_of(kind: type[E]) -> Callable[[str, str], E]:
    def read(name: str, text: str) -> E:
        try:
            return kind(text)
        except ValueError:
            raise _wrong(name, text, f"one of {', '.join(kind)}") from None

    return read


def _size(least: int, most: int) -> Callable[[str, str], int]:
    def read(name: str, text: str) -> int:
        found = SIZE_SHAPE.fullmatch(text)
        size = int(found[1]) * UNITS[found[2]] if found else -1
        if not least <= size <= most:
            raise _wrong(name, text, f"{least} to {most} bytes, or a number of MiB or GiB such as 64MiB")
        return size

    return read


def _wrong(name: str, text: str, wanted: str) -> InvalidConfig:
    return InvalidConfig(f"AOT_BLOB_URL says {name}={text[:80]!r}, wanted {wanted}", hint=HINT)


READERS: Mapping[str, tuple[str, Callable[[str, str], Any]]] = {
    "endpoint": ("endpoint", _address),
    "public_endpoint": ("public_endpoint", _address),
    "region": ("region", _text),
    "style": ("style", _one_of(Style)),
    "sse": ("sse", _one_of(Encryption)),
    "kms_key": ("kms_key", _text),
    "largest_put": ("largest_put_bytes", _size(1, PUT_LIMIT_BYTES)),
    "part": ("part_bytes", _size(PART_LEAST_BYTES, PART_LIMIT_BYTES)),
}
