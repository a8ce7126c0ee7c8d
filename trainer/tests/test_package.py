"""What the package is made of: its stub, its imports, its words."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import unittest
from pathlib import Path

import feedmill
from feedmill import _feedmill

FOLDER = Path(feedmill.__file__).parent

TRAINER = Path(__file__).resolve().parents[1]


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
                        said[f"{node.name}.{member.name}"] = [a.arg for a in member.args.args if a.arg not in ("self", "cls")]
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
                    real[f"{name}.__new__"] = parameters(value)
                elif member == "__array_interface__" or (not member.startswith("__") and not callable(of)):
                    real[f"{name}.{member}"] = []
                elif not member.startswith("__") or member in ("__enter__", "__exit__"):
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


class Lazy(unittest.TestCase):
    def test_what_is_for_a_framework_needs_no_second_import_and_is_imported_late(self) -> None:
        # `feedmill.hf` was an AttributeError until somebody imported it.
        code = """
        import sys, types
        import feedmill
        names = ("torch", "transformers", "feedmill.torch", "feedmill.hf", "feedmill.megatron", "importlib.metadata")
        assert not [name for name in names if name in sys.modules]
        assert {"hf", "torch", "megatron", "__version__"} <= set(dir(feedmill))
        assert isinstance(feedmill.__version__, str) and feedmill.__version__
        assert feedmill.megatron.packed_batch
        try:
            feedmill.absent
        except AttributeError as error:
            print(error)
        """
        made = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
        self.assertIn("'feedmill' has no attribute 'absent'", made.stdout)
        for name in ("hf", "torch"):
            # Without the framework it is that which is not there.
            try:
                getattr(feedmill, name)
            except ImportError as error:
                self.assertNotIn("feedmill", str(error.name))


class Program(unittest.TestCase):
    def test_the_workers_program_is_a_command_of_the_package(self) -> None:
        # examples/slurm and docs/agent.md call it, and a wheel put it nowhere in PATH.
        said = re.search(r'^\[project\.scripts\]\nfeedmill-worker = "([a-z.]+):([a-z]+)"$', (TRAINER / "pyproject.toml").read_text(), re.MULTILINE)
        assert said is not None
        code = f"import sys; from {said[1]} import {said[2]}; sys.argv[0] = 'feedmill-worker'; {said[2]}()"
        made = subprocess.run([sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=True)
        self.assertIn("--exit-with-stdin", made.stdout)
        made = subprocess.run([sys.executable, "-c", code, "agent", "--help"], capture_output=True, text=True, check=True)
        self.assertIn("--upstream", made.stdout)

    def test_a_package_without_the_program_does_not_hide_one_that_is_in_path(self) -> None:
        # Its command came first in PATH, and gave up there.
        with tempfile.TemporaryDirectory() as root:
            package, scripts, programs = (Path(root) / name for name in ("package", "scripts", "programs"))
            for folder in (package / "feedmill", scripts, programs):
                folder.mkdir(parents=True)
            for entry in FOLDER.iterdir():
                if entry.name != "bin":
                    (package / "feedmill" / entry.name).symlink_to(entry)
            command, program = scripts / "feedmill-worker", programs / "feedmill-worker"
            # As pip writes it.
            command.write_text(f"#!{sys.executable}\nimport sys\nfrom feedmill.program import main\nif __name__ == '__main__':\n    sys.exit(main())\n")
            program.write_text('#!/bin/sh\necho "real $@"\n')
            for file in (command, program):
                file.chmod(0o755)

            def run(*arguments: str | Path, path: list[Path]) -> subprocess.CompletedProcess[str]:
                variables = os.environ | {"PYTHONPATH": str(package), "PATH": os.pathsep.join(map(str, [*path, "/usr/bin", "/bin"]))}
                variables.pop("FEEDMILL_WORKER", None)
                return subprocess.run(list(map(str, arguments)), env=variables, capture_output=True, text=True, timeout=60)

            code = "from feedmill.nodes import worker_program; print(worker_program())"
            self.assertEqual(run(command, "--help", path=[scripts, programs]).stdout, "real --help\n")
            self.assertEqual(run(sys.executable, "-c", code, path=[scripts, programs]).stdout, f"{program}\n")
            # Another environment's command is better than none, and what it lacks is said by itself.
            self.assertEqual(run(sys.executable, "-c", code, path=[scripts]).stdout, f"{command}\n")
            self.assertIn("installed without the program", run(command, path=[scripts]).stderr)
            # And a wrapper of the command is not taken for the program for ever.
            program.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
            self.assertIn("installed without the program", run(command, path=[scripts, programs]).stderr)


class Examples(unittest.TestCase):
    def test_the_batch_script_is_one_and_the_docs_name_it(self) -> None:
        script = "examples/slurm/train.sbatch"
        subprocess.run(["bash", "-n", str(TRAINER.parent / script)], check=True)
        self.assertIn(f"(../{script})", (TRAINER.parent / "docs" / "trainer.md").read_text())


class Types(unittest.TestCase):
    """The stub against the built module, and the package against itself. mypy comes with trainer/tests/requirements.txt."""

    def mypy(self, module: str, *arguments: str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", module, *arguments]
            environment = os.environ | {"MYPYPATH": str(FOLDER.parent), "MYPY_CACHE_DIR": folder}
            # Away from the sources: the package is the one that is installed.
            made = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment)
        self.assertEqual(made.returncode, 0, made.stdout + made.stderr)

    @unittest.skipUnless(importlib.util.find_spec("mypy"), "mypy is not installed")
    def test_the_stub_is_that_of_the_built_module(self) -> None:
        self.mypy("mypy.stubtest", "feedmill._feedmill")

    @unittest.skipUnless(importlib.util.find_spec("mypy"), "mypy is not installed")
    def test_the_package_holds_to_its_types(self) -> None:
        # torch and transformers are not there in the tests' environment.
        self.mypy("mypy", "--strict", "--ignore-missing-imports", "--allow-subclassing-any", "-p", "feedmill")


if __name__ == "__main__":
    unittest.main()
