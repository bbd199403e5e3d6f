"""Environments: what one host and one container are, observed without torch and in a few milliseconds.

The first step of the pod's flow (design.md, section 5): observe, then `aot.select` decides. A fact that could not be
observed is None, never a guess. Everything is read below a root directory, so that a test can be any host.
`aot.environment.problems` looks at more, for people.
"""

from aot.environment.container import observe_container
from aot.environment.host import Host
from aot.environment.node import observe_node
from aot.schema.environment import Environment

__all__ = ["Host", "observe_container", "observe_environment", "observe_node"]


def observe_environment(host: Host | None = None) -> Environment:
    """Return the facts of this host and container. Never raises for what is missing."""
    host = host or Host()
    return Environment(node=observe_node(host), container=observe_container(host))
