"""What a caller calls an input: reasons of guards and of calls name the parameter, as `forward` has it.

Manifests keep the place in the call, "args[0]", "kwargs['mask'][1]": it is there whatever the parameters are called.
"""

import re
from collections.abc import Callable
from inspect import Parameter, Signature

Speak = Callable[[str], str]

_PLACE = re.compile(r"args\[(?P<position>\d+)\]|kwargs\['(?P<name>\w+)'\]")
_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


def positional_names(signature: Signature) -> tuple[str, ...]:
    """Return the parameters that can be given by position, in order."""
    return tuple(name for name, parameter in signature.parameters.items() if parameter.kind in _POSITIONAL)


def speaker(signature: Signature) -> Speak:
    """Return what gives the name of a place in a call: "args[0]" is "tokens", "args[0]['ids']" is "tokens['ids']".

    What goes into `*args` or `**kwargs` has no name of its own, and stays what it is.
    """
    positional = positional_names(signature)
    named = frozenset(name for name, parameter in signature.parameters.items() if parameter.kind in _NAMED)

    def speak(path: str) -> str:
        place = _PLACE.match(path)
        if place is None:
            return path
        below = path[place.end() :]
        if (name := place["name"]) is not None:
            return f"{name}{below}" if name in named else path
        position = int(place["position"])
        return f"{positional[position]}{below}" if position < len(positional) else path

    return speak
