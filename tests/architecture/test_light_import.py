"""`import aot` on a pod: no torch, no server library, and quick."""

import subprocess
import sys

HEAVY = ("torch", "triton", "numpy", "litestar", "sqlalchemy", "boto3", "celery", "cryptography", "typer", "rich")


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_import_aot_loads_no_heavy_library() -> None:
    loaded = run(f"import sys, aot; print([name for name in {HEAVY!r} if name in sys.modules])")
    assert loaded.strip() == "[]"


def test_every_public_name_is_importable_and_listed() -> None:
    code = "import aot; print(sorted(n for n in aot.__all__ if not hasattr(aot, n)), len(aot.__all__))"
    missing, count = run(code).rsplit(" ", 1)
    assert missing == "[]"
    assert int(count) <= 25
