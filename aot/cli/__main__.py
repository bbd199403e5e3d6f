"""`python -m aot.cli`: the `aot` command where its script is not on the path."""

from aot.cli import main

main()
