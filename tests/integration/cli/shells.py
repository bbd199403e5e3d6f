"""Every command of `aot` as a process: stdout is data, stderr is talk, and the exit code is part of the contract."""

from tests.builders import a_profile

# What every x86-64 machine can be.
PROFILE = a_profile("cpu-base", capability="cpu:x86-64")
