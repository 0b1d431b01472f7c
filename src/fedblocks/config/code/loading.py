"""The user's own code: files and modules that a command is told to read, and what their calls of
`run` would use.

While a file is read, `fedblocks.run`, `compare` and `resume` start nothing: they hand methods and
data to the command that reads it. So the very script that started a run serves to go on with it.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from fedblocks.config.code.ingredients import (
    Ingredients,
    check_same,
    differences,
    name_of,
    net_table,
)
from fedblocks.config.code.protection import protected_runs
from fedblocks.config.model import ALL, Config
from fedblocks.config.options import Table
from fedblocks.config.registry import CODE, PYTHON, UNLISTED
from fedblocks.core.errors import UserError
from fedblocks.core.method import Method
from fedblocks.core.small_files import cause_of_failure, is_file, read_small
from fedblocks.methods import METHODS

Recipe = Callable[[int], Ingredients]  # of a seed: what one run would use


class _HandedOver(BaseException):
    """Ends the reading of a file where it would start a run; no handler of the file's
    own should catch it.
    """


@dataclass
class _Reading:
    """Whether a file is being read, and what it has handed over."""

    active: bool = False
    recipes: list[Recipe] = field(default_factory=list)


_reading = _Reading()


def hand_over(recipes: Callable[[], Iterable[Recipe]]) -> None:
    """Where a command reads the code that calls this, give it what a run would use, and
    go no further.
    """
    if _reading.active:
        _reading.recipes += recipes()
        raise _HandedOver


@dataclass(frozen=True, eq=False)
class Code:
    """Code that was read."""

    sources: tuple[str, ...] = ()
    hashes: tuple[tuple[str, str], ...] = ()  # name and SHA-256 of each file
    recipes: tuple[Recipe, ...] = ()  # what its calls of `run` and `compare` would use

    @staticmethod
    def read(sources: Sequence[str]) -> Code:
        """Run files and import modules: what they put into NETS, METHODS and DATASETS
        is known from now on.
        """
        recipes = [recipe for source in sources for recipe in _read(source)]
        files = [
            (Path(source).name, file_hash(Path(source)))
            for source in sources
            if is_file(Path(source))
        ]
        return Code(tuple(sources), tuple(files), tuple(recipes))

    def ingredients_for(self, config: Config) -> Ingredients | None:
        """What a run was made of, if it was made of objects and any code was read:
        exactly that, or UserError.
        """
        if not config.is_of_objects or not self.sources:
            return None
        nearest = min(self._offers(config.seed), key=lambda offer: _unlike(config, offer))
        check_same(config, nearest)
        return nearest

    def method_for(self, name: str, net: Table, seed: int) -> Method | None:
        """The method of this name with this very net, where the net was made in Python;
        exactly that, or UserError.
        """
        if net["name"] != PYTHON or not self.sources:
            return None
        methods = [method for offer in self._offers(seed) for method in offer.methods.values()]
        alike = [m for m in methods if name_of(type(m)) == name and net_table(m.net) == net]
        if not alike:
            fix = "name the program that started the run that the model comes from"
            raise UserError(
                f"{', '.join(self.sources)} has no method {name} with the net of the model", fix
            )
        return alike[0]

    def _offers(self, seed: int) -> list[Ingredients]:
        """What the runs that the code would start are made of."""
        recipes = self.recipes or [
            recipe for source in self.sources for recipe in _read(source, as_main=True)
        ]
        if not recipes:
            fix = "name the program that started the run"
            raise UserError(
                f"{', '.join(self.sources)} calls neither fedblocks.run nor fedblocks.compare", fix
            )
        return [recipe(seed) for recipe in recipes]


def _unlike(config: Config, offer: Ingredients) -> tuple[bool, int]:
    """How far an offer is from a run: first whether it is another method, then by how
    many differences.
    """
    name = name_of(type(offer.method_of(ALL)))
    return name != config.method.name, sum(1 for _ in differences(config, offer))


def _read(source: str, as_main: bool = False) -> list[Recipe]:
    """What the calls in a file or a module hand over; it is read up to its first one."""
    _reading.active = True
    _reading.recipes = []
    try:
        with protected_runs(source):
            _import_file(Path(source), as_main) if _is_file(source) else _import_module(source)
    except _HandedOver:
        pass
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # whatever other people's code does
        reason = f"{type(error).__name__}: {error} ({_place(error, source)})"
        fix = "correct the file; nothing was started"
        raise UserError(f"--code {source} cannot be read: {reason}", fix) from error
    finally:
        _reading.active = False
    return _reading.recipes


def _place(error: BaseException, source: str) -> str:
    """The innermost line of the user's own files that an error went through."""
    frames = traceback.extract_tb(error.__traceback__)
    path = Path(source).resolve()
    if isinstance(error, SyntaxError) and error.filename is not None:  # of a file that is not run
        return f"{Path(error.filename).name}, line {error.lineno}"
    own = [frame for frame in frames if Path(frame.filename).resolve().parent == path.parent]
    last = (own or frames)[-1]
    return f"{Path(last.filename).name}, line {last.lineno}"


def _is_file(source: str) -> bool:
    return source.endswith(".py") or is_file(Path(source))


class _UncachedLoader(SourceFileLoader):
    """Compiles a file whenever it is read: bytecode that was kept passes for a file of the same
    second and length, which a quick edit may be.
    """

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)

    def get_data(self, path: str) -> bytes:
        return read_small(Path(path))


def _import_file(path: Path, as_main: bool) -> None:
    try:
        read_small(path)
    except (OSError, ValueError) as error:
        is_missing = isinstance(error, FileNotFoundError)
        reason = "there is no such file" if is_missing else cause_of_failure(error)
        fix = "name a Python file, or an importable module"
        raise UserError(f"--code {path}: {reason}", fix) from error
    name = "__main__" if as_main else f"fedblocks_code_{path.stem}"
    _look_first_in(path.resolve().parent)
    loader = _UncachedLoader(name, str(path))
    spec = importlib.util.spec_from_file_location(name, path, loader=loader)
    if path.suffix != ".py" or spec is None:
        raise UserError(f"--code {path} is not Python", "name a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    # stays: dataclasses and type hints of its classes are looked up there
    sys.modules[name] = module
    try:
        loader.exec_module(module)
    finally:
        _note_unlisted(module, path)


def _note_unlisted(module: ModuleType, path: Path) -> None:
    """Remember methods that a file defines and registers nowhere, to be told of if they are
    asked for.
    """
    for title, value in vars(module).items():
        is_own = isinstance(value, type) and value.__module__ == module.__name__
        if is_own and issubclass(value, Method) and value not in METHODS.values():
            UNLISTED[title] = path.name


def _import_module(name: str) -> None:
    _look_first_in(Path.cwd())
    if not all(part.isidentifier() for part in name.split(".")):
        raise UserError(
            f"--code {name}: there is no such file or module", "name a Python file or a module"
        )
    importlib.import_module(name)


def _look_first_in(folder: Path) -> None:
    """As `python FILE` does, so that a file finds its neighbours."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def file_hash(path: Path) -> str:
    """SHA-256 of a file."""
    return sha256(read_small(path)).hexdigest()


def tell_children(sources: Sequence[str]) -> None:
    """Processes that are started from now on read the same code, before they look for a name."""
    if sources:
        whole = [str(Path(source).resolve()) if _is_file(source) else source for source in sources]
        os.environ[CODE] = os.pathsep.join(whole)
