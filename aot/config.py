"""What the environment tells a client or a pod: the only file of `aot` that reads environment variables.

| variable          | meaning                                                        | default                    |
|-------------------|----------------------------------------------------------------|----------------------------|
| AOT_URL           | address of the registry                                        | none: offline              |
| AOT_TOKEN         | bearer token                                                   | none                       |
| AOT_TOKEN_FILE    | file that holds it, where AOT_TOKEN is not set                 | none                       |
| AOT_TRUSTED_KEYS  | public keys that may sign, `ed25519:…`, separated by commas    | none: nothing is trusted   |
| AOT_CACHE_DIR     | node-local cache                                               | $XDG_CACHE_HOME/aot        |
| AOT_CACHE_BYTES   | its bound: a number, or one with K, M, G, T (powers of 1024)   | 50G                        |
| AOT_FALLBACK      | `eager`: run eagerly for any reason against; `raise`: raise it | eager                      |
| AOT_OFFLINE       | `1`: never ask the registry                                    | 0                          |
| AOT_CANARY        | `1`: run each artifact's canary before its first call          | 0                          |
| AOT_RECEIPTS      | `0`: do not tell the registry what was loaded                  | 1                          |
| AOT_TIMEOUT       | seconds to wait for the network before going on without it     | 10                         |
| AOT_DATA_DIR      | directory of `aot up`                                          | ~/.local/share/aot         |
| AOT_PROFILE       | name of the profile to be or to ask for                        | observed                   |
| AOT_TRUST_SOURCES | namespaces whose sources may run without a sandbox             | none                       |
| GITHUB_SHA, CI_COMMIT_SHA | set by CI: the commit of a source that git knows nothing of | none                  |
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self, TypeVar

from aot.errors import AotError, InvalidConfig
from aot.schema.names import Name, Namespace

T = TypeVar("T")

FALLBACKS = ("eager", "raise")
CACHE_BYTES = 50 << 30
TIMEOUT_SECONDS = 10.0
_SIZE = re.compile(r"(\d{1,18})([KMGT]?)(?:i?B)?", re.IGNORECASE)
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")


@dataclass(frozen=True, kw_only=True)
class Config:
    """Read once, passed on as a value."""

    cache_dir: Path
    data_dir: Path
    url: str | None = None
    token: str | None = field(default=None, repr=False)
    trusted_keys: tuple[str, ...] = ()
    cache_bytes: int = CACHE_BYTES
    fallback: str = "eager"
    offline: bool = False
    receipts: bool = True
    canary: bool = False
    timeout_seconds: float = TIMEOUT_SECONDS
    profile: Name | None = None
    trust_sources: frozenset[Namespace] = frozenset()
    ci_commit: str | None = None

    @classmethod
    def from_environ(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Read `environ`, by default the process's own. Raises InvalidConfig naming the variable that is wrong."""
        values = os.environ if environ is None else environ
        profile = values.get("AOT_PROFILE")
        return cls(
            cache_dir=_directory(values, "AOT_CACHE_DIR") or _default_cache_dir(values),
            data_dir=_directory(values, "AOT_DATA_DIR") or _home(values) / ".local" / "share" / "aot",
            url=_url(values),
            token=_token(values),
            trusted_keys=_trusted_keys(values),
            cache_bytes=_size(values, "AOT_CACHE_BYTES", CACHE_BYTES),
            fallback=_one_of(values, "AOT_FALLBACK", FALLBACKS),
            offline=_flag(values, "AOT_OFFLINE", False),
            receipts=_flag(values, "AOT_RECEIPTS", True),
            canary=_flag(values, "AOT_CANARY", False),
            timeout_seconds=_seconds(values, "AOT_TIMEOUT", TIMEOUT_SECONDS),
            profile=_parsed("AOT_PROFILE", profile, Name.parse) if profile else None,
            trust_sources=frozenset(
                _parsed("AOT_TRUST_SOURCES", part, Namespace.parse) for part in _parts(values, "AOT_TRUST_SOURCES")
            ),
            ci_commit=values.get("GITHUB_SHA") or values.get("CI_COMMIT_SHA") or None,
        )

    def with_cache_dir(self, cache_dir: Path) -> Self:
        """The same, with its cache elsewhere."""
        return replace(self, cache_dir=cache_dir.expanduser().absolute())


def whole_environ() -> dict[str, str]:
    """A copy of the process's environment, for a child that is meant to inherit all of it."""
    return dict(os.environ)


def change_environ(changes: Mapping[str, str]) -> None:
    """Set these variables of the process itself, for what it imports and starts after this."""
    os.environ.update(changes)


def _wrong(variable: str, found: str, wanted: str) -> InvalidConfig:
    return InvalidConfig(f"{variable} is {found[:200]!r}", hint=f"set it to {wanted}", details={"variable": variable})


def _url(values: Mapping[str, str]) -> str | None:
    url = values.get("AOT_URL", "").strip()
    if not url:
        return None
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        whole = parts.scheme in ("http", "https") and parts.hostname and (parts.port or True)
    except ValueError:
        whole = False
    if not whole or parts.query or parts.fragment or parts.username:
        # Not shown whole: somebody may have put a password in it.
        raise _wrong("AOT_URL", url.rpartition("@")[2], "an address like https://registry.example.com, without a user")
    return url.rstrip("/")


def _token(values: Mapping[str, str]) -> str | None:
    if token := values.get("AOT_TOKEN", "").strip():
        return token
    path = values.get("AOT_TOKEN_FILE", "").strip()
    if not path:
        return None
    try:
        token = Path(path).expanduser().read_text().strip()
    except (OSError, ValueError) as error:
        raise InvalidConfig(
            f"AOT_TOKEN_FILE names {path}, which cannot be read: {error}",
            hint="set it to a file that holds a token, or set AOT_TOKEN",
            details={"variable": "AOT_TOKEN_FILE"},
        ) from error
    if not token:
        raise _wrong("AOT_TOKEN_FILE", path, "a file that holds a token; this one is empty")
    return token


def _trusted_keys(values: Mapping[str, str]) -> tuple[str, ...]:
    text = values.get("AOT_TRUSTED_KEYS", "").strip()
    if not text:
        return ()
    from aot.trust import TrustedKeys

    return tuple(str(key) for key in _parsed("AOT_TRUSTED_KEYS", text, TrustedKeys.parse))


def _parts(values: Mapping[str, str], variable: str) -> tuple[str, ...]:
    return tuple(part for part in re.split(r"[,\s]+", values.get(variable, "")) if part)


def _parsed(variable: str, text: str, parse: Callable[[str], T]) -> T:
    try:
        return parse(text)
    except AotError as error:
        raise InvalidConfig(f"{variable}: {error.message}", hint=error.hint, details={"variable": variable}) from error


def _size(values: Mapping[str, str], variable: str, default: int) -> int:
    text = values.get(variable, "").strip()
    if not text:
        return default
    match = _SIZE.fullmatch(text)
    if match is None:
        raise _wrong(variable, text, "a number of bytes, like 10737418240 or 10G")
    return int(match[1]) << (10 * " KMGT".index(match[2].upper() or " "))


def _seconds(values: Mapping[str, str], variable: str, default: float) -> float:
    text = values.get(variable, "").strip()
    if not text:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 86400:
        raise _wrong(variable, text, "a number of seconds above 0")
    return seconds


def _flag(values: Mapping[str, str], variable: str, default: bool) -> bool:
    text = values.get(variable, "").strip().lower()
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    if text:
        raise _wrong(variable, text, "1 or 0")
    return default


def _one_of(values: Mapping[str, str], variable: str, choices: tuple[str, ...]) -> str:
    text = values.get(variable, "").strip() or choices[0]
    if text not in choices:
        raise _wrong(variable, text, " or ".join(choices))
    return text


def _directory(values: Mapping[str, str], variable: str) -> Path | None:
    text = values.get(variable, "").strip()
    if not text:
        return None
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError:
        raise _wrong(variable, text, "a directory; this user has no home") from None


def _default_cache_dir(values: Mapping[str, str]) -> Path:
    return (_directory(values, "XDG_CACHE_HOME") or _home(values) / ".cache") / "aot"


def _home(values: Mapping[str, str]) -> Path:
    if home := values.get("HOME"):
        return Path(home).absolute()
    try:
        return Path.home()
    except RuntimeError:
        # A container that runs as a number without a name; its /tmp is its own.
        return Path("/tmp") / f"aot-{os.getuid()}"
