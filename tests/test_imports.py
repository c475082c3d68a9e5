"""Imports point one way: run -> methods -> {models, cluster, speech, data, metrics}; reporting knows no method."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "implementations"
METHODS = ("spark", "ist", "averaging", "layerwise", "baselines")
LOWER = ("models", "cluster", "speech", "data", "metrics")
BASE = ("errors", "clock", "seeds", "point")
UPPER = (
    *("__main__", "run", "worker", "spark_worker", "harness", "workflow", "doctor", "codehash", "config"),
    "reporting",
)
HEAVY = ("torch", "mpi4py", "pyspark", "snakemake")


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, Path]:
    return {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def import_nodes(node: ast.AST, lazy: bool):
    """Import statements below a node; without ``lazy`` those of function bodies are left out."""
    for child in ast.iter_child_nodes(node):
        if is_type_checking(child):
            yield from (found for part in child.orelse for found in import_nodes(part, lazy))
        elif isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        elif lazy or not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from import_nodes(child, lazy)


@cache
def imported(name: str, lazy: bool = True) -> frozenset[str]:
    """Modules that a module's import statements name; of the package's own, the deepest that exists."""
    found = set()
    for node in import_nodes(ast.parse(modules()[name].read_text()), lazy):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            assert node.level == 0, f"{name}: relative import, line {node.lineno}"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [one if one in modules() else node.module for one in names]
        for one in names:
            while one.startswith("implementations.") and one not in modules():
                one = one.rpartition(".")[0]
            found.add(one)
    return frozenset(found)


def part_of(name: str) -> str:
    """averaging for implementations.averaging.method."""
    return name.split(".")[1] if name.startswith("implementations.") else ""


def edges(*parts: str) -> list[tuple[str, str]]:
    """Who imports what, for the modules of these parts."""
    return [
        (name, other)
        for name in modules()
        if part_of(name) in parts
        for other in imported(name)
        if other.startswith("implementations")
    ]


def test_there_are_modules_to_look_at():
    assert {"implementations.point", "implementations.averaging.method"} <= set(modules())
    assert "implementations.point" in imported("implementations.record")


def test_no_cycles():
    graph = nx.DiGraph((name, other) for name in modules() for other in imported(name) if other in modules())
    # A package's __init__ gathers names of its own modules, which may import one another.
    loops = [loop for loop in nx.strongly_connected_components(graph) if len(loop) > 1]
    assert not loops, f"import cycles: {[sorted(loop) for loop in loops]}"


@pytest.mark.parametrize("method", METHODS)
def test_methods_do_not_import_each_other(method):
    others = set(METHODS) - {method}
    assert [edge for edge in edges(method) if part_of(edge[1]) in others] == []


@pytest.mark.parametrize("method", METHODS)
def test_methods_import_nothing_above_them(method):
    assert [edge for edge in edges(method) if part_of(edge[1]) in UPPER] == []


@pytest.mark.parametrize("part", LOWER)
def test_lower_layers_import_nothing_above_them(part):
    assert [edge for edge in edges(part) if part_of(edge[1]) in (*METHODS, *UPPER)] == []


def test_the_base_imports_only_the_base():
    assert [edge for edge in edges(*BASE) if part_of(edge[1]) not in BASE] == []


def test_reporting_reads_records_and_config_only():
    """The arithmetic of word errors aside, which is that of the runs."""
    forbidden = (*METHODS, *LOWER, "run", "worker", "harness", "training")
    found = {edge[1] for edge in edges("reporting") if part_of(edge[1]) in forbidden}
    assert found == {"implementations.speech.wer"}


def test_reporting_loads_no_heavy_library():
    """Not even through what it imports."""
    todo = [name for name in modules() if part_of(name) == "reporting"]
    seen = {}
    while todo:
        name = todo.pop()
        for other in imported(name, lazy=part_of(name) == "reporting"):
            if other in modules() and other not in seen:
                seen[other] = name
                todo.append(other)
            assert other.split(".")[0] not in HEAVY, f"{name} imports {other} (reached from {seen.get(name)})"


def test_tests_and_reporting_aside_nobody_imports_reporting():
    allowed = {"__main__", "advise_verb", "reporting", "timings", "doctor"}
    users = {part_of(name) for name in modules() for other in imported(name) if part_of(other) == "reporting"}
    assert users <= allowed


def test_config_is_read_without_torch_or_mpi():
    """A dry run and an unreadable config must answer in a moment."""
    program = (
        "import sys; from implementations import config, workflow; config.load('config/config.yaml');"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "[]"
