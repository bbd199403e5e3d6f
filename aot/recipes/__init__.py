"""What a recipe may ask of the route `package`, checked without torch: by the client, the registry and the compiler.

First step of the flow submit → compile → publish (design.md, section 5): what no worker could build is refused
before anything is packed, again where the row would be written, and again where it would be compiled.
"""

from aot.recipes.check import BUILT_ROUTES, NO_OTHER_ROUTE, check_recipe, route_notes
from aot.recipes.options import ALLOWED, reason_against

__all__ = ["ALLOWED", "BUILT_ROUTES", "NO_OTHER_ROUTE", "check_recipe", "reason_against", "route_notes"]
