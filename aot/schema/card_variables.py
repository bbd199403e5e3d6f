"""Variables that say which of a host's cards a process sees, and in which order: a worker's to set, no recipe's."""

CHOICE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
ORDER = "CUDA_DEVICE_ORDER"
CARD_VARIABLES = (*CHOICE, ORDER)
