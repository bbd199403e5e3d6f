"""Settings: defaults that need nothing, and errors that name the variable."""

from datetime import timedelta
from pathlib import Path

import pytest

from aot.errors import InvalidConfig
from registry.db.session import open_sessions
from registry.settings import Settings


def test_without_variables_everything_lies_in_one_directory() -> None:
    settings = Settings.from_environ({"AOT_DATA_DIR": "/data"})
    assert settings.database_url == "sqlite:////data/registry.sqlite3"
    assert settings.signing_keys == (Path("/data/signing.key"),)
    assert settings.token_path == Path("/data/token")
    assert (settings.host, settings.public_url) == ("127.0.0.1", f"http://127.0.0.1:{settings.port}")
    assert settings.embedded


def test_production_is_three_variables() -> None:
    settings = Settings.from_environ(
        {
            "AOT_DATA_DIR": "/data",
            "AOT_DATABASE_URL": "postgresql+psycopg://registry@db/aot",
            "AOT_BROKER_URL": "redis://broker:6379/0",
            "AOT_BLOB_URL": "s3://bucket/prefix",
        }
    )
    assert not settings.embedded
    assert (settings.broker_url, settings.blob_url) == ("redis://broker:6379/0", "s3://bucket/prefix")


def test_numbers_are_read() -> None:
    settings = Settings.from_environ({"AOT_LEASE_SECONDS": "0.5", "AOT_MAX_ATTEMPTS": "7", "AOT_PORT": "80"})
    assert (settings.lease, settings.max_attempts, settings.port) == (timedelta(seconds=0.5), 7, 80)


def test_several_keys_sign() -> None:
    settings = Settings.from_environ({"AOT_SIGNING_KEYS": "/a/old.key:/a/new.key"})
    assert settings.signing_keys == (Path("/a/old.key"), Path("/a/new.key"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AOT_LEASE_SECONDS", "soon"),
        ("AOT_LEASE_SECONDS", "0"),
        ("AOT_LEASE_SECONDS", "nan"),
        ("AOT_MAX_ATTEMPTS", "1.5"),
        ("AOT_MAX_ATTEMPTS", "-1"),
        ("AOT_PORT", "70000"),
        ("AOT_LINK_SECONDS", "1e300"),
    ],
)
def test_a_wrong_value_names_its_variable(name: str, value: str) -> None:
    with pytest.raises(InvalidConfig, match=name):
        Settings.from_environ({name: value})


@pytest.mark.parametrize("url", ["nonsense", "oracle+unknown://x"])
def test_a_database_that_no_driver_understands_is_named(url: str) -> None:
    with pytest.raises(InvalidConfig, match="AOT_DATABASE_URL"):
        open_sessions(url)
