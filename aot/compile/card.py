"""Whether the card that torch would compile on is the one that the profile describes."""

from aot.errors import InvalidProfile
from aot.schema.profile import Profile


def check_card(profile: Profile) -> None:
    """Raises InvalidProfile where torch's first card is of another architecture or model than the profile's.

    What was tuned and measured on another card would be published as tuned for this one. Torch spells a slice as the
    card's name, " MIG " and the slice (torch.cuda.get_device_properties).
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
    capability, sku = f"cuda:sm_{found.major}{found.minor}", found.name.partition(" MIG ")[0]
    if (capability, sku) != (str(profile.capability), device.sku):
        raise InvalidProfile(
            f"profile {profile.name} is of {device.sku} ({profile.capability}), torch's first card here is {sku} "
            f"({capability})",
            hint="a host with different cards needs a worker for each: start it with CUDA_VISIBLE_DEVICES=GPU-<uuid> "
            "(nvidia-smi -L lists them)",
        )
