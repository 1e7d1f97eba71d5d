"""The rules of the house: who may import whom, and what never appears in the tree."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MAY_IMPORT = {
    "fedapps": {"fedapps"},
    "strategies": {"strategies", "fedapps"},
    "clients": {"clients", "fedapps"},
    "simulations": {"simulations", "strategies", "clients", "fedapps"},
}
ROOMS = set(MAY_IMPORT) | {"deploy", "tests"}


def imports(path: Path) -> set[str]:
    """Top-level packages that a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.partition(".")[0])
    return found


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_point_downwards(package: str) -> None:
    files = list((ROOT / package).rglob("*.py"))
    assert files
    for path in files:
        assert imports(path) & ROOMS <= MAY_IMPORT[package], path


def test_relative_imports_are_not_used() -> None:
    for package in MAY_IMPORT:
        for path in (ROOT / package).rglob("*.py"):
            nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            assert not any(isinstance(node, ast.ImportFrom) and node.level for node in nodes), path


def test_flowers_private_modules_are_used_by_the_in_process_grid_only() -> None:
    public = {"flwr.app", "flwr.clientapp", "flwr.serverapp", "flwr.serverapp.strategy", "flwr.common.logger"}
    for package in MAY_IMPORT:
        for path in (ROOT / package).rglob("*.py"):
            if path.name == "in_process.py":
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("flwr."):
                    assert node.module in public, f"{path}: {node.module}"


def test_the_tests_that_the_documents_name_exist() -> None:
    """A table of faults that names a test which is gone promises what nobody checks."""
    files = (ROOT / "tests").rglob("test_*.py")
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in files]
    known = {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    named = re.findall(r"`(test_\w+)`", (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8"))
    assert len(named) > 60 and set(named) <= known, sorted(set(named) - known)
