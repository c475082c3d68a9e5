"""A hash of the code that a point runs, comments and docstrings aside: a cosmetic edit changes nothing."""

from __future__ import annotations

import ast
import hashlib
import importlib.machinery
import sys
from functools import cache
from pathlib import Path

from implementations import registry
from implementations.models import BUILDERS
from implementations.point import Point

_PACKAGE = Path(__file__).parent
_SESSIONS = "implementations.cluster.spark"
# What joins the workers of a run, by what starts them, or by evidence where nothing does.
_COMMUNICATORS = {
    "mpi": ["implementations.cluster.mpi"],
    "spark": ["implementations.cluster.sockets", "implementations.cluster.spark.stage"],
    "simulated": ["implementations.cluster.simulated"],
}


def code_hash(method: str, evidence: str, model: str = "fc", path: str | None = None) -> str:
    """Hash of every module of this package that a run of ``method`` on ``model`` imports, directly or not.

    ``path``: of a user's own network, whose code counts too.
    """
    roots = ["implementations.harness", registry.MODULES[method], BUILDERS[model]["module"]]
    joined_by = registry.get(method).runs_on if evidence == "measured" else evidence
    roots += _COMMUNICATORS.get(joined_by, [])
    digest = hashlib.sha256()
    # Methods may name the session that measured points run in; no other run loads it.
    for module in sorted(closure(roots, without="" if joined_by == "spark" else _SESSIONS)):
        digest.update(module.encode())
        digest.update(normalised(_path(module)).encode())
    if path is not None:
        digest.update(own_code_hash(path).encode())
    return digest.hexdigest()[:16]


def point_code_hash(point: Point) -> str:
    """The hash of the code that a point runs, read once in a process."""
    return _hash_once(point.method, point.evidence, point.model["name"], point.model.get("path"))


@cache
def _hash_once(method: str, evidence: str, model: str, path: str | None) -> str:
    return code_hash(method, evidence, model, path)


def own_code_hash(path: str) -> str:
    """Hash of the file of a user's ``package.module:Net``, and of the files beside it that it imports, directly or not.

    Beside it means in the current folder; of what lies elsewhere the module's file alone counts. Nothing is imported.
    """
    folder = Path.cwd()
    seen: dict[str, Path] = {}
    todo = [path.partition(":")[0]]
    while todo:
        module = todo.pop()
        file = None if module in seen else _own_file(module, folder)
        if file is None or (seen and not _beside(file, folder)):
            continue
        seen[module] = file
        if _beside(file, folder):
            todo += _names(file, module)
    digest = hashlib.sha256()
    for module, file in sorted(seen.items()):
        digest.update(f"{module} {normalised_text(file.read_text())}".encode())
    return digest.hexdigest()[:16]


def _own_file(module: str, folder: Path) -> Path | None:
    """The Python file of a module, as Python would find it in ``folder``; None where there is none."""
    places: list[str] | None = [str(folder), *sys.path]
    name, found = "", None
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        found = importlib.machinery.PathFinder.find_spec(name, places) if places is not None else None
        if found is None:
            return None
        places = None if found.submodule_search_locations is None else list(found.submodule_search_locations)
    origin = Path(found.origin) if found and found.origin else None
    return origin if origin is not None and origin.suffix == ".py" and origin.is_file() else None


def _beside(file: Path, folder: Path) -> bool:
    return file.is_relative_to(folder) and "site-packages" not in file.parts


def _names(file: Path, module: str) -> list[str]:
    """Whatever a file's import statements may mean, of any package, and the packages around it."""
    try:
        tree = ast.parse(file.read_text())
    except SyntaxError:
        return []
    package = module.split(".") if file.name == "__init__.py" else module.split(".")[:-1]
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            found += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    parts = [name.split(".") for name in found if name]
    return [".".join(words[: count + 1]) for words in parts for count in range(len(words))]


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


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Modules of this package that a file's import statements name (``if TYPE_CHECKING`` blocks aside)."""
    found = []
    for node in ast.walk(_without_type_checking(ast.parse(path.read_text()))):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.append(node.module)
            found += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
    return tuple(name for name in found if name.split(".")[0] == _PACKAGE.name and _path(name).exists())


@cache
def normalised(path: Path) -> str:
    """The syntax tree of a file without docstrings, comments and positions."""
    return normalised_text(path.read_text())


def normalised_text(text: str) -> str:
    """The same of a file's content; the text itself where it is no Python."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return text
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
