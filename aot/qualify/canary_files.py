"""The names of a canary's two files, below `canary/<artifact>/`."""

INPUTS_FILE, OUTPUTS_FILE = "inputs.safetensors", "outputs.safetensors"
