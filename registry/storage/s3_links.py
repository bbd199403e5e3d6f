"""Links to GET blobs: the first of each second by boto3's client, the others after its pattern.

The client takes 0.15 ms for a link: events, endpoint rules, validation, which come out alike for every blob, and a pod
waits for the links of hundreds. What is signed at one second differs in the key alone, in the URL and in the canonical
request that the signature is of (Amazon S3 API Reference, "Authenticating Requests: Using Query Parameters (AWS
Signature Version 4)"). So the client's link serves as the pattern of the others: botocore makes its canonical request,
the day's signing key is derived with it, once for all links of that second, and each takes 0.003 ms.

A pattern is used only when it comes to the client's own signature for the client's own link. Where it does not (other
signatures, sessions of a directory bucket, credentials that changed meanwhile), every link is the client's.
"""

import calendar
import hashlib
import hmac
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from botocore.auth import SIGV4_TIMESTAMP, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest

from aot.schema.digest import Digest
from registry.storage.s3_answers import translated
from registry.storage.s3_incoming import key_of

Presign = Callable[[Digest, timedelta], str]
SIGNATURE = "&X-Amz-Signature="


class S3DownloadLinks:
    """`presign` is the client's way to a link; `credentials` are what it signs with, None where it has none.

    Credentials that refresh are asked for every link: nothing outlives those that it was made of.
    """

    def __init__(self, presign: Presign, *, credentials: Any) -> None:
        self._presign = presign
        self._credentials = credentials
        self._pattern: Pattern | None = None  # replaced as a whole, by whichever thread

    def url(self, digest: Digest, *, expires_in: timedelta) -> str:
        """What the client itself would answer at this second."""
        with translated("get credentials to sign a link"):
            credentials = self._credentials and self._credentials.get_frozen_credentials()
        pattern = self._pattern
        if pattern is not None and pattern.fits(credentials, expires_in, int(time.time())):
            return pattern.url(digest)
        url = self._presign(digest, expires_in)
        self._pattern = credentials and Pattern.of(url, digest, credentials=credentials, expires_in=expires_in)
        return url


def life_of(credentials: Any, wanted: timedelta) -> timedelta:
    """How long a link may live that `credentials` sign now: not longer than they do, in whole seconds.

    A store refuses what expired ones have signed, with words of its own. botocore does not tell when credentials
    expire, but whether they do within so many seconds. Raises botocore's errors where they cannot be refreshed.
    """
    expire_within = getattr(credentials, "refresh_needed", None)
    if expire_within is None:  # these last
        return wanted
    credentials.get_frozen_credentials()  # which refreshes them where they are about to expire
    seconds = int(wanted.total_seconds())
    if not expire_within(seconds):
        return wanted
    return timedelta(seconds=bisect_left(range(seconds), True, key=expire_within) - 1)


@dataclass(frozen=True)
class Pattern:
    """A link and its canonical request, each in two pieces: before the digest in its key, and after it."""

    credentials: Any = field(repr=False)
    expires_in: timedelta
    second: int  # since 1970: a link lives from there
    pieces: tuple[str, str] = field(repr=False)  # without the signature
    canonical: tuple[str, str] = field(repr=False)
    beginning: str = field(repr=False)  # of what is signed: all but the hash of the canonical request
    keyed: hmac.HMAC = field(repr=False)  # of one shot, `hmac.digest` would let go of the interpreter for every link

    @classmethod
    def of(cls, url: str, digest: Digest, *, credentials: Any, expires_in: timedelta) -> Self | None:
        """None where it comes to another link."""
        unsigned, _, _ = url.partition(SIGNATURE)
        query = parse_qs(urlsplit(url).query)
        match query.get("X-Amz-Credential", [""])[0].split("/"), query.get("X-Amz-Date"):
            case [*_, day, region, service, "aws4_request" as ending], [at]:
                scope = day, region, service, ending
            case _:
                return None
        request, signer = AWSRequest("GET", url=unsigned), S3SigV4QueryAuth(credentials, service, region)
        request.context["timestamp"] = at
        pieces, canonical = _cut(unsigned, digest), _cut(signer.canonical_request(request), digest)
        if pieces is None or canonical is None:
            return None
        second = calendar.timegm(time.strptime(at, SIGV4_TIMESTAMP))
        beginning, _, _ = signer.string_to_sign(request, "").rpartition("\n")
        keyed = hmac.new(_signing_key(credentials.secret_key, scope), digestmod="sha256")
        found = cls(credentials, expires_in, second, pieces, canonical, beginning, keyed)
        return found if found.url(digest) == url else None

    def fits(self, credentials: Any, expires_in: timedelta, second: int) -> bool:
        return self.second == second and self.expires_in == expires_in and self.credentials == credentials

    def url(self, digest: Digest) -> str:
        place = key_of("", digest)
        hashed = hashlib.sha256(place.join(self.canonical).encode()).hexdigest()
        signing = self.keyed.copy()
        signing.update(f"{self.beginning}\n{hashed}".encode())
        return f"{place.join(self.pieces)}{SIGNATURE}{signing.hexdigest()}"


def _signing_key(secret: str, scope: Sequence[str]) -> bytes:
    """Of the day, region and service that `scope` names, in the order of a credential scope."""
    key = f"AWS4{secret}".encode()
    for part in scope:
        key = hmac.digest(key, part.encode(), "sha256")
    return key


def _cut(text: str, digest: Digest) -> tuple[str, str] | None:
    match text.split(key_of("", digest)):  # of digits and letters, which every encoding leaves alone
        case [before, after]:
            return before, after
    return None
