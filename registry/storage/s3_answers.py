"""What S3 answers, in our words. boto3's exceptions are translated here and nowhere else."""

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    PartialCredentialsError,
)
from botocore.exceptions import ConnectionError as BotoConnectionError
from urllib3.exceptions import HTTPError  # what boto3 lets through of a body's faults: those of TLS

from aot.errors import AotError, InvalidConfig, StorageUnavailable
from aot.schema.digest import Digest

BUSY = frozenset({"SlowDown", "RequestTimeout", "OperationAborted", "ConditionalRequestConflict"})
REOPENED = 4


@contextmanager
def translated(wish: str) -> Iterator[None]:
    """boto3's exceptions as ours: refused credentials stop the registry, everything passing is tried again."""
    try:
        yield
    except ClientError as error:
        raise _translated_answer(error, wish) from error
    except (NoCredentialsError, PartialCredentialsError) as error:
        raise InvalidConfig(
            f"could not {wish}: {error}", hint="give the registry credentials for its bucket"
        ) from error
    except (BotoConnectionError, HTTPClientError, IncompleteReadError, HTTPError, OSError) as error:
        raise StorageUnavailable(f"could not {wish}: {error}", hint="check the endpoint in AOT_BLOB_URL") from error
    except BotoCoreError as error:
        raise InvalidConfig(f"could not {wish}: {error}", hint="check AOT_BLOB_URL") from error


def head(client: Any, bucket: str, key: str, *, what: str = "") -> dict[str, Any] | None:
    """What the store says of one object, None where it has none. `what`: how an error calls it, its key if left out."""
    with translated(f"look for {what or key} in bucket {bucket}"):
        try:
            return dict(client.head_object(Bucket=bucket, Key=key))
        except ClientError as error:
            if status_of(error) == 404:
                return None
            raise


def status_of(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def code_of(error: ClientError) -> str:
    return str(error.response["Error"]["Code"])


def is_passing(error: ClientError) -> bool:
    """The same request may be answered later."""
    return status_of(error) >= 500 or status_of(error) == 429 or code_of(error) in BUSY


def _translated_answer(error: ClientError, wish: str) -> AotError:
    code, status = code_of(error), status_of(error)
    message = f"could not {wish}: {code}"
    if is_passing(error):
        return StorageUnavailable(message, hint="the object store is busy or away")
    if code == "RequestTimeTooSkewed":
        return InvalidConfig(message, hint="the clocks of this host and of the object store differ: set both by NTP")
    if status in (401, 403):
        # Without s3:ListBucket, S3 answers 403 for what is absent: a registry that went on would be wrong.
        return InvalidConfig(message, hint="the registry needs what deploy/s3-policy.json allows")
    return InvalidConfig(message, hint="check bucket, endpoint and region in AOT_BLOB_URL")


class ResumedBody(io.RawIOBase):
    """The stream of one object; a connection that breaks is taken up where it ended.

    `begin` opens the object from a byte on and returns the stream and how many bytes are left in it. So many breaks in
    a row as REOPENED are borne; whatever comes between two ends the row, since a blob of hours sees many.
    """

    def __init__(self, begin: Callable[[int], tuple[Any, int]], digest: Digest) -> None:
        self._begin = begin
        self._digest = digest
        self._position = 0
        self._failures = 0
        self._body, self._left = begin(0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while self._left:
            try:
                with translated(f"read {self._digest}"):
                    chunk = self._body.read(min(len(buffer), self._left))
                    if not chunk:
                        raise OSError(f"the answer ended {self._left} bytes early")
            except StorageUnavailable:
                self._failures += 1
                if self._failures > REOPENED:
                    raise
                self._body.close()
                self._body, self._left = self._begin(self._position)
                continue
            buffer[: len(chunk)] = chunk
            self._position += len(chunk)
            self._left -= len(chunk)
            self._failures = 0
            return len(chunk)
        return 0

    def close(self) -> None:
        if not self.closed:
            self._body.close()
        super().close()
