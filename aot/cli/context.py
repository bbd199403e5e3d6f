"""What most commands begin with: the configuration, and a client for its registry."""

from aot.client import RegistryClient
from aot.client.connect import open_client
from aot.config import Config
from aot.environment import observe_environment
from aot.errors import InvalidConfig, InvalidInput
from aot.schema.capability import CPU_X86_LEVELS
from aot.schema.environment import host_cpu
from aot.schema.names import Name
from aot.trust import TrustedKeys


def read_config() -> Config:
    return Config.from_environ()


def connect(config: Config) -> RegistryClient:
    """Return a client of the configured registry. Raises InvalidConfig where none is configured."""
    if not config.url:
        raise InvalidConfig("AOT_URL is not set", hint="start a registry with `aot up`; it prints the lines to set")
    return open_client(config.url, config.token, timeout_seconds=config.timeout_seconds)


def trusted_keys(config: Config) -> TrustedKeys:
    """Return the keys that the user set. Raises InvalidConfig where there are none: trust never comes on first use."""
    if not config.trusted_keys:
        raise InvalidConfig(
            "AOT_TRUSTED_KEYS is not set, so no signature can be verified",
            hint="`aot up` prints the line to set; ask whoever runs the registry for its key",
        )
    return TrustedKeys.parse(",".join(config.trusted_keys))


def choose_profile(client: RegistryClient, wanted: str | None) -> Name:
    """Return the named profile, or the best registered one that this host's CPU covers.

    Raises InvalidInput where none does.
    """
    if wanted:
        return Name.parse(wanted)
    here = host_cpu(observe_environment().node)
    profiles = [view for view in client.list_profiles().profiles if view.profile.capability.family == "cpu"]
    fitting = [view for view in profiles if here is not None and here.runs(view.profile.capability)]
    if not fitting:
        names = ", ".join(view.profile.name for view in profiles) or "none"
        raise InvalidInput(
            f"no registered profile fits this host ({here or 'unknown CPU'}); registered: {names}",
            hint="start a worker, or name a profile with --profile",
        )
    best = max(fitting, key=lambda view: (view.live_workers > 0, _level(view.profile.capability.level)))
    return best.profile.name


def _level(target: str) -> int:
    return CPU_X86_LEVELS.index(target) if target in CPU_X86_LEVELS else -1
