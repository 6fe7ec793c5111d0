"""The public names: one sorted list, each documented."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys

import pytest

import sessile
from sessile import Session

VALUES = {"CAPABILITIES", "CONVERSIONS", "FORMS", "HIDE", "LAST_ENTRY"}
HEAVY = {"anyio", "asyncio", "sqlite3", "hypothesis", "rich", "click", "importlib.metadata"}


def test_all_is_sorted_and_complete() -> None:
    """`__all__` is sorted, and names everything that can be imported from the package."""
    assert sessile.__all__ == sorted(sessile.__all__)
    assert set(sessile.__all__) == set(sessile._MODULES)
    assert set(sessile.__all__) <= set(dir(sessile))
    assert all(getattr(sessile, name).__name__.endswith(name) for name in sessile.__all__ if name not in VALUES)


def test_every_public_name_is_documented() -> None:
    """Each class, function and public method has a docstring."""
    for name in sessile.__all__:
        value = getattr(sessile, name)
        if not (inspect.isclass(value) or inspect.isfunction(value)):
            continue
        assert value.__doc__, name
        if inspect.isclass(value):
            undocumented = [
                method
                for method, member in inspect.getmembers(value)
                if (inspect.isfunction(member) or isinstance(member, property))
                and not method.startswith("_")
                and not inspect.getdoc(member)
            ]
            assert not undocumented, (name, undocumented)


@pytest.mark.parametrize("name", [name for name in sessile.__all__ if name != "errors"])
def test_every_public_name_has_an_example_and_describes_its_arguments(name: str) -> None:
    """The API reference is generated from the docstrings: sections are in Google style and name every argument or field."""
    value = getattr(sessile, name)
    text = inspect.getdoc(value) or ""
    assert "\nExample:\n    ```python\n" in text
    parameters = [one for one in inspect.signature(value).parameters if one != "self"]
    assert [one for one in parameters if not re.search(rf"\n    {one}(?: \([^)]*\))?: ", text)] == []


def test_every_append_method_documents_the_common_arguments_once() -> None:
    """`key` and `on_leaf_moved` are described in the class and in `append_many`; the methods refer to it or leave them out."""
    assert "`key`: " in (Session.__doc__ or "") and "`on_leaf_moved`: " in (Session.__doc__ or "")
    for name in (name for name in dir(Session) if name.startswith("append_")):
        signature = inspect.signature(getattr(Session, name))
        assert signature.parameters["key"].default is None, name
        assert signature.parameters["on_leaf_moved"].default == "branch", name
        if name != "append_many":
            kinds = {signature.parameters[one].kind for one in ("key", "on_leaf_moved")}
            assert kinds == {inspect.Parameter.KEYWORD_ONLY}, name


def test_every_error_has_a_message_of_its_own() -> None:
    """An error without arguments has a default message; each has a status and an exit code."""
    errors = [value for value in vars(sessile.errors).values() if inspect.isclass(value)]
    tree = [error for error in errors if issubclass(error, sessile.errors.SessileError)]
    assert len({str(error()) for error in tree}) == len(tree)
    assert all(400 <= error.status < 600 and 0 < error.exit_code < 10 for error in tree)
    assert all(error.__name__ in (sessile.errors.__doc__ or "") for error in tree)


def test_importing_the_package_imports_nothing_heavy() -> None:
    """Modules that a command does not need are not imported at its start."""
    assert not {"msgspec", "typing", "dataclasses"} & _loaded_by("import sessile")
    assert not HEAVY & _loaded_by("from sessile import Store")


def _loaded_by(statement: str) -> set[str]:
    code = f"import sys; before = set(sys.modules); {statement}; print(*set(sys.modules) - before)"
    run = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True, env=_environment()
    )
    return set(run.stdout.split())


def _environment() -> dict[str, str]:
    return {"PYTHONPATH": ":".join(path for path in sys.path if path)}
