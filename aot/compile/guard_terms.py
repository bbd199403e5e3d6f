"""From torch's spelling of a condition on sizes to ours: `L['x'].size()[0] % 8 == 0` becomes `s[0][0] % 8 == 0`.

torch prints conditions as Python, over symbols (`s77`) or over its own names of inputs. Only syntax is rewritten
here; whether the result is of the language of guards is for `aot.runtime.expression` to say.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from aot.compile.call_spec import leaf_paths
from aot.errors import SourceNotExportable

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_MOST_FACTORS = 8  # of a power that is written out
_VARIADIC = re.compile(r"(.+)_(\d+)")


def read_terms(text: str, symbols: Mapping[str, str], sources: Mapping[str, int]) -> str:
    """Return `text` with symbols and `L[...].size()[d]` replaced by `s[i][d]`, and powers written out.

    `sources` maps torch's name of an input to its position. What is not known stays, to be refused later.
    """
    try:
        tree = ast.parse(text.replace("\n", " "), mode="eval")
    except SyntaxError as error:
        raise unreadable(text) from error
    return ast.unparse(_Rewrite(symbols, sources).visit(tree))


def unreadable(text: str) -> SourceNotExportable:
    return SourceNotExportable(
        f"the program assumes {text[:200]!r} of its inputs, which no guard can check",
        hint="export with contiguous inputs and fewer dynamic sizes, or torch._check what the program may assume",
    )


def guards_as_text(program: "ExportedProgram", paths: Sequence[str]) -> Iterator[str]:
    """Yield the guards that a saved program carries as text, over `s[i][d]`.

    `paths` are those of the tensor inputs. Guards of this kind exist since torch 2.8.
    """
    sources = _sources(program, paths)
    for text in getattr(program, "_guards_code", None) or ():
        yield read_terms(text, {}, sources)


def _sources(program: "ExportedProgram", paths: Sequence[str]) -> dict[str, int]:
    """Return every name that torch may give a tensor input in a guard, with the input's position."""
    args, kwargs = program.call_spec.in_spec.children()
    roots = [f"args[{index}]" for index in range(args.num_children)]
    roots += [f"kwargs[{key!r}]" for key in kwargs.context]
    parameters = program.module_call_graph[0].signature.forward_arg_names or ()
    names: dict[str, int] = {}
    for name, root in zip(parameters, roots, strict=False):
        for position, path in enumerate(paths):
            rest = path.removeprefix(root)
            if path != root and not (path.startswith(root) and rest[0] in "[."):
                continue
            names[f"L[{name!r}]{rest}"] = position
            if variadic := _VARIADIC.fullmatch(name):  # args_0 is L['args'][0]
                names[f"L[{variadic[1]!r}][{variadic[2]}]{rest}"] = position
    flat = {path: index for index, path in enumerate(leaf_paths(program.call_spec.in_spec))}
    # The name that a strict export gives.
    return names | {f"L['flat_args'][{flat[path]}]": position for position, path in enumerate(paths)}


class _Rewrite(ast.NodeTransformer):
    def __init__(self, symbols: Mapping[str, str], sources: Mapping[str, int]) -> None:
        self._symbols = symbols
        self._sources = {ast.unparse(ast.parse(name, mode="eval")): position for name, position in sources.items()}

    def visit_Name(self, node: ast.Name) -> ast.expr:
        text = self._symbols.get(node.id)
        return node if text is None else ast.parse(text, mode="eval").body

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        match node:
            case ast.Subscript(
                value=(
                    ast.Call(func=ast.Attribute(value=tensor, attr="size"), args=[])
                    | ast.Attribute(value=tensor, attr="shape")
                ),
                slice=ast.Constant(value=int() as dim),
            ) if (position := self._sources.get(ast.unparse(tensor))) is not None:
                return ast.parse(f"s[{position}][{dim}]", mode="eval").body
        return self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        match node:
            case ast.BinOp(op=ast.Pow(), left=base, right=ast.Constant(value=int() as power)) if (
                1 <= power <= _MOST_FACTORS
            ):
                product = f"({ast.unparse(self.visit(base))})"
                return ast.parse("*".join([product] * power), mode="eval").body
        return self.generic_visit(node)
