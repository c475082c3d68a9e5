"""A hash of the code that a point runs, comments and docstrings aside: a cosmetic edit changes nothing."""

from __future__ import annotations

import ast
import hashlib
from functools import cache
from pathlib import Path

from implementations import registry
from implementations.models import BUILDERS

_PACKAGE = Path(__file__).parent
_SESSIONS = "implementations.cluster.spark"
# What joins the workers of a run, by what starts them, or by evidence where nothing does.
_COMMUNICATORS = {
    "mpi": ["implementations.cluster.mpi"],
    "spark": ["implementations.cluster.sockets", "implementations.cluster.spark.stage"],
    "simulated": ["implementations.cluster.simulated"],
}


def code_hash(method: str, evidence: str, model: str = "fc") -> str:
    """Hash of every module of this package that a run of ``method`` on ``model`` imports, directly or not."""
    roots = ["implementations.harness", registry.MODULES[method], BUILDERS[model]["module"]]
    joined_by = registry.get(method).runs_on if evidence == "measured" else evidence
    roots += _COMMUNICATORS.get(joined_by, [])
    digest = hashlib.sha256()
    # Methods may name the session that measured points run in; no other run loads it.
    for module in sorted(closure(roots, without="" if joined_by == "spark" else _SESSIONS)):
        digest.update(module.encode())
        digest.update(normalised(_path(module)).encode())
    return digest.hexdigest()[:16]


def closure(roots: list[str], without: str = "") -> set[str]:
    """The modules of this package reached from ``roots`` by import statements, those for type checking aside.

    ``without``: a package that is left out.
    """
    seen: set[str] = set()
    todo = list(roots)
    while todo:
        module = todo.pop()
        if module not in seen and not (without and f"{module}.".startswith(f"{without}.")):
            seen.add(module)
            todo += imports(_path(module))
    return seen


def imports(path: Path) -> list[str]:
    """Modules of this package that a file's import statements name (``if TYPE_CHECKING`` blocks aside)."""
    found = []
    for node in ast.walk(_without_type_checking(ast.parse(path.read_text()))):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.append(node.module)
            found += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
    return [name for name in found if name.split(".")[0] == _PACKAGE.name and _path(name).exists()]


@cache
def normalised(path: Path) -> str:
    """The syntax tree of a file without docstrings, comments and positions."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and _is_docstring(body[0]):
            node.body = body[1:]
    return ast.dump(tree)


def _is_docstring(node: ast.AST) -> bool:
    constant = node.value if isinstance(node, ast.Expr) else None
    return isinstance(constant, ast.Constant) and isinstance(constant.value, str)


class _DropTypeChecking(ast.NodeTransformer):
    def visit_If(self, node: ast.If) -> ast.AST | None:
        return None if ast.unparse(node.test).endswith("TYPE_CHECKING") else self.generic_visit(node)


def _without_type_checking(tree: ast.AST) -> ast.AST:
    return _DropTypeChecking().visit(tree)


def _path(module: str) -> Path:
    path = _PACKAGE.parent.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
