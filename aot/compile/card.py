"""Whether the card that torch would compile on is the one that the profile describes."""

from aot.errors import InvalidProfile
from aot.schema.profile import Profile


def check_card(profile: Profile) -> None:
    """Raises InvalidProfile where torch's first card is of another architecture, model or slice than the profile's.

    What was tuned and measured on another card would be published as tuned for this one. Torch spells a slice as the
    card's name, " MIG " and the slice (torch.cuda.get_device_properties), as the driver does (aot.environment.nvidia).
    """
    device = profile.device
    if profile.capability.family != "cuda" or device is None:
        return
    import torch

    if not torch.cuda.is_available():
        raise InvalidProfile(
            f"profile {profile.name} is of {device.sku}, and torch sees no card here",
            hint="does this worker's process see the card: the driver's libraries, /dev/nvidia*, CUDA_VISIBLE_DEVICES?",
        )
    found = torch.cuda.get_device_properties(0)
    capability = f"cuda:sm_{found.major}{found.minor}"
    sku, _, mig = found.name.partition(" MIG ")
    if (capability, sku, mig) != (str(profile.capability), device.sku, device.mig or ""):
        raise InvalidProfile(
            f"profile {profile.name} is of {_spell(device.sku, device.mig)} ({profile.capability}), torch's first card "
            f"here is {found.name} ({capability})",
            hint="a host with different cards or slices needs a worker for each: start it with "
            "CUDA_VISIBLE_DEVICES=GPU-<uuid> or MIG-<uuid> (nvidia-smi -L lists them)",
        )


def _spell(sku: str, mig: str | None) -> str:
    return f"{sku} MIG {mig}" if mig else sku
