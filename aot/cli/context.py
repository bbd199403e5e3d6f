"""What most commands begin with: the configuration, and a client for its registry."""

from aot.client import RegistryClient
from aot.client.connect import open_client
from aot.config import Config
from aot.environment import observe_environment
from aot.errors import InvalidConfig, InvalidInput
from aot.schema.capability import CPU_X86_LEVELS
from aot.schema.environment import NodeFacts, host_cpu
from aot.schema.names import Name
from aot.schema.profile import Profile
from aot.schema.wire.workers import ProfileView
from aot.trust import TrustedKeys


def read_config() -> Config:
    return Config.from_environ()


def connect(config: Config) -> RegistryClient:
    """Return a client of the configured registry. Raises InvalidConfig where none is configured, or may be asked."""
    if config.offline:
        raise InvalidConfig("AOT_OFFLINE is set, and this needs the registry", hint="leave AOT_OFFLINE unset for it")
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
    """Return the named profile, or the best registered one that fits this host: of its card, else of its CPU.

    A card's profile is for its exact SKU, since tuning is. Raises InvalidInput where none fits.
    """
    if wanted:
        return Name.parse(wanted)
    node = observe_environment().node
    views = client.list_profiles().profiles
    fitting = [view for view in views if _fits(view.profile, node)]
    if not fitting:
        names = ", ".join(view.profile.name for view in views) or "none"
        here = ", ".join(str(one) for one in (*_skus(node), host_cpu(node)) if one) or "an unknown CPU"
        raise InvalidInput(
            f"no registered profile fits this host ({here}); registered: {names}",
            hint="start a worker, or name a profile with --profile",
        )
    return max(fitting, key=_preference).profile.name


def _fits(profile: Profile, node: NodeFacts) -> bool:
    if profile.device is not None:
        return profile.device.sku in _skus(node)
    cpu = host_cpu(node)
    return profile.capability.family == "cpu" and cpu is not None and cpu.runs(profile.capability)


def _skus(node: NodeFacts) -> tuple[str, ...]:
    return tuple(dict.fromkeys(gpu.sku for gpu in node.gpus or ()))


def _preference(view: ProfileView) -> tuple[bool, bool, int, bool]:
    """Profiles that a worker serves now first, then cards, then the higher CPU level without more than that."""
    level = view.profile.capability.level
    rank = CPU_X86_LEVELS.index(level) if level in CPU_X86_LEVELS else -1
    return view.live_workers > 0, view.profile.device is not None, rank, not view.profile.capability.features
