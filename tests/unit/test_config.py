"""Environment variables: defaults, spellings, and a refusal that names the variable."""

from pathlib import Path

import pytest

from aot.config import Config
from aot.errors import InvalidConfig
from aot.schema.names import Name, Namespace

KEY = "ed25519:" + "A" * 43 + "="
OTHER_KEY = "ed25519:" + "B" * 42 + "A="
HOME = {"HOME": "/home/someone"}


def test_nothing_set_is_an_offline_client_that_trusts_nobody() -> None:
    assert Config.from_environ(HOME) == Config(
        cache_dir=Path("/home/someone/.cache/aot"), data_dir=Path("/home/someone/.local/share/aot")
    )


def test_everything_set(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a-token\n")
    config = Config.from_environ(
        {
            "AOT_URL": "https://registry.example.com/aot/",
            "AOT_TOKEN_FILE": str(tmp_path / "token"),
            "AOT_TRUSTED_KEYS": f"{KEY}, {OTHER_KEY}\n",
            "AOT_CACHE_DIR": str(tmp_path / "cache"),
            "AOT_CACHE_BYTES": "10G",
            "AOT_FALLBACK": "raise",
            "AOT_OFFLINE": "true",
            "AOT_RECEIPTS": "0",
            "AOT_TIMEOUT": "2.5",
            "AOT_DATA_DIR": str(tmp_path / "up"),
            "AOT_PROFILE": "cpu-v3",
            "AOT_TRUST_SOURCES": "default,team",
        }
    )
    assert config == Config(
        url="https://registry.example.com/aot",
        token="a-token",
        trusted_keys=(KEY, OTHER_KEY),
        cache_dir=tmp_path / "cache",
        cache_bytes=10 << 30,
        fallback="raise",
        offline=True,
        receipts=False,
        timeout_seconds=2.5,
        data_dir=tmp_path / "up",
        profile=Name("cpu-v3"),
        trust_sources=frozenset({Namespace("default"), Namespace("team")}),
    )
    assert "a-token" not in repr(config)


def test_the_token_itself_comes_before_its_file(tmp_path: Path) -> None:
    assert Config.from_environ({**HOME, "AOT_TOKEN": "one", "AOT_TOKEN_FILE": "/nowhere"}).token == "one"


def test_an_empty_variable_is_not_set() -> None:
    names = ("URL", "TOKEN", "TRUSTED_KEYS", "CACHE_DIR", "CACHE_BYTES", "FALLBACK", "OFFLINE", "TIMEOUT", "PROFILE")
    assert Config.from_environ({**HOME, **{f"AOT_{name}": "" for name in names}}) == Config.from_environ(HOME)


@pytest.mark.parametrize(
    ("text", "size"), [("123", 123), ("1K", 1024), ("2MiB", 2 << 20), ("3gb", 3 << 30), ("4T", 4 << 40)]
)
def test_sizes(text: str, size: int) -> None:
    assert Config.from_environ({**HOME, "AOT_CACHE_BYTES": text}).cache_bytes == size


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("AOT_URL", "registry.example.com"),
        ("AOT_URL", "ftp://registry"),
        ("AOT_URL", "http://"),
        ("AOT_URL", "http://["),
        ("AOT_URL", "http://host:port"),
        ("AOT_URL", "http://host/?x=1"),
        ("AOT_TOKEN_FILE", "/nowhere/token"),
        ("AOT_TOKEN_FILE", "/dev/null"),
        ("AOT_TRUSTED_KEYS", "ed25519:short"),
        ("AOT_TRUSTED_KEYS", f"{KEY},{KEY[8:]}"),
        ("AOT_CACHE_BYTES", "-1"),
        ("AOT_CACHE_BYTES", "many"),
        ("AOT_CACHE_BYTES", "1.5G"),
        ("AOT_FALLBACK", "jit"),
        ("AOT_OFFLINE", "maybe"),
        ("AOT_RECEIPTS", "2"),
        ("AOT_TIMEOUT", "0"),
        ("AOT_TIMEOUT", "soon"),
        ("AOT_TIMEOUT", "nan"),
        ("AOT_PROFILE", "Not A Name"),
        ("AOT_TRUST_SOURCES", "default,UPPER"),
    ],
)
def test_a_wrong_value_names_its_variable(variable: str, value: str) -> None:
    with pytest.raises(InvalidConfig) as raised:
        Config.from_environ({**HOME, variable: value})
    assert variable in raised.value.message and raised.value.hint
    assert raised.value.details == {"variable": variable}


def test_a_password_in_the_address_is_refused_and_not_shown() -> None:
    with pytest.raises(InvalidConfig) as raised:
        Config.from_environ({**HOME, "AOT_URL": "https://user:hunter2@host"})
    assert "hunter2" not in str(raised.value)


def test_the_cache_follows_xdg_and_stays_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert Config.from_environ({**HOME, "XDG_CACHE_HOME": "/x"}).cache_dir == Path("/x/aot")
    assert Config.from_environ({**HOME, "AOT_CACHE_DIR": "here"}).cache_dir == tmp_path / "here"
    assert Config.from_environ(HOME).with_cache_dir(Path("there")).cache_dir == tmp_path / "there"
