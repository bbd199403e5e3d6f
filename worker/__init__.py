"""The worker: takes builds from the queue, compiles and proves them in child processes, publishes what is proven.

It runs other people's code, so it holds no database and no bucket credentials: only a token that may claim, and for
each attempt the token that the claim answers with.
"""
