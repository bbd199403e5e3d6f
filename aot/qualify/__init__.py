"""The proof that a bundle carries: a start watched from outside, numerics, speed and canaries, in fresh processes.

Nothing goes live unqualified (design.md, section 4). `qualify` is the one way in; it never imports torch itself.
"""

from aot.qualify.run import Proof, qualify

__all__ = ["Proof", "qualify"]
