"""What the package is made of: its stub, its imports, its words."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
import unittest
from pathlib import Path

import feedmill
from feedmill import _feedmill

FOLDER = Path(feedmill.__file__).parent


def parameters(of: object) -> list[str]:
    return [name for name in inspect.signature(of).parameters if name != "self"]  # type: ignore[arg-type]


class Stub(unittest.TestCase):
    def test_it_names_what_is_there_and_nothing_else(self) -> None:
        tree = ast.parse((FOLDER / "_feedmill.pyi").read_text())
        said: dict[str, list[str]] = {}
        for node in tree.body:
            if isinstance(node, ast.FunctionDef):
                said[node.name] = [argument.arg for argument in node.args.args]
            elif isinstance(node, ast.ClassDef):
                said[node.name] = []
                for member in node.body:
                    if isinstance(member, ast.FunctionDef):
                        said[f"{node.name}.{member.name}"] = [a.arg for a in member.args.args if a.arg != "self"]
        real: dict[str, list[str]] = {}
        for name, value in vars(_feedmill).items():
            if name.startswith("__"):
                continue
            if not inspect.isclass(value):
                real[name] = parameters(value)
                continue
            real[name] = []
            for member, of in vars(value).items():
                if member == "__new__" and value.__text_signature__ is not None:
                    real[f"{name}.__init__"] = parameters(value)
                elif member == "__array_interface__" or (not member.startswith("__") and not callable(of)):
                    real[f"{name}.{member}"] = []
                elif not member.startswith("__"):
                    real[f"{name}.{member}"] = parameters(of)
        self.assertEqual(said, real)

    def test_everything_public_says_what_it_is(self) -> None:
        for name in feedmill.__all__:
            value = getattr(feedmill, name)
            self.assertTrue(value.__doc__, name)
            for member, of in vars(value).items():
                if not member.startswith("_") and (callable(of) or isinstance(of, property)):
                    self.assertTrue(inspect.getdoc(of), f"{name}.{member}")


class Imports(unittest.TestCase):
    def test_numpy_is_the_only_package_that_is_needed(self) -> None:
        code = "import sys; before = set(sys.modules); import feedmill; print(*sorted({n.split('.')[0] for n in set(sys.modules) - before}))"
        made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        foreign = set(made.stdout.split()) - set(sys.stdlib_module_names) - {"feedmill", "numpy"}
        self.assertEqual(foreign, set())


if __name__ == "__main__":
    unittest.main()
