"""The stubs of the native module: they name what it has, with the same parameters."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from weightloom import _weightloom

STUBS = Path(__file__).parents[1] / "weightloom/_weightloom.pyi"

HIDDEN = {"__all__", "__doc__", "__file__", "__loader__", "__module__", "__name__", "__package__", "__spec__", "__new__"}


def names_of(item: Any) -> set[str]:
    """The names that a module or class defines itself."""
    methods = {"__len__", "__iter__", "__next__", "__enter__", "__exit__", "__getitem__", "__call__", "__repr__"}
    names = set(vars(item)) - HIDDEN
    return {name for name in names if not name.startswith("__") or name in methods | {"__version__"}}


def is_of_types_only(item: ast.ClassDef) -> bool:
    """Whether a class describes objects of the Python half."""
    bases = {ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in item.bases}
    return bool(bases & {"Protocol", "TypedDict", "NamedTuple"})


def parameters_of(function: ast.FunctionDef) -> list[str]:
    arguments = function.args
    several = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return [argument.arg for argument in several if argument.arg not in ("self", "cls")]


def described(body: list[ast.stmt]) -> Iterator[tuple[str, ast.stmt]]:
    for item in body:
        if isinstance(item, (ast.FunctionDef, ast.ClassDef)):
            yield item.name, item
        elif isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            yield item.target.id, item


def runtime_parameters(function: Any) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


def test_the_stubs_name_what_the_module_has() -> None:
    stubs = dict(described(ast.parse(STUBS.read_text()).body))
    stubs = {
        name: item for name, item in stubs.items() if not (isinstance(item, ast.ClassDef) and is_of_types_only(item))
    }
    assert set(stubs) == names_of(_weightloom)
    for name, item in stubs.items():
        found = getattr(_weightloom, name)
        if isinstance(item, ast.FunctionDef):
            assert parameters_of(item) == runtime_parameters(found), name
        elif isinstance(item, ast.ClassDef):
            members = dict(described(item.body))
            made = members.pop("__init__", None) or members.pop("__new__", None)
            members.pop("__buffer__", None)
            assert set(members) == names_of(found), name
            if isinstance(made, ast.FunctionDef):
                assert parameters_of(made) == runtime_parameters(found), name
            for member, stub in members.items():
                method = inspect.getattr_static(found, member)
                is_property = isinstance(stub, ast.FunctionDef) and any(
                    ast.unparse(decorator) == "property" for decorator in stub.decorator_list
                )
                assert is_property == inspect.isgetsetdescriptor(method), f"{name}.{member}"
                if isinstance(stub, ast.FunctionDef) and not is_property and not member.startswith("__"):
                    assert parameters_of(stub) == runtime_parameters(getattr(found, member)), f"{name}.{member}"
