"""Adapters of `dialect: python`: their files are imported, and their functions called.

Each backend has a module of its own, also where two name the same file. An adapter imports the files beside it by
`from . import NAME`: their folder is a package for this one module, without an `__init__.py` and not on `sys.path`. So
a reload imports them anew as well, and nothing old stays in `sys.modules`. Not here: what the functions get and return
(`codec.dialects.arrays`), and
the threads in which they run (`adapter_threads`).
"""

import importlib.util
import inspect
import itertools
import sys
import threading
import types
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, FileFinder, ModuleSpec, SourceFileLoader
from pathlib import Path
from typing import Any

from gateway.adapter import Adapter, AdapterCall
from gateway.codec.dialects.arrays import request_of
from gateway.codec.inference import NonFinite
from gateway.codec.v2.error_bodies import shortened
from gateway.config import Config
from gateway.errors import CodecError, ConfigError
from gateway.serving.adapter_threads import AdapterThreads

IMPORT_S = 60.0
"""How long an import may take: at the start, in `check`, and in a reload, which one that hangs would end for ever."""

EXCEPTION_CHARACTERS = 1000
"""How many characters of an exception's text are repeated."""

SWITCH_S = 0.0005
"""After how long a thread that works in Python gives way to the event loop, which wants to go on; by default 5 ms."""

PACKAGES = "_tensor_gateway_adapters_"
"""What the names of the packages of adapters begin with; a number follows, new for each import."""

FUNCTIONS: Mapping[str, tuple[str, ...]] = {"request": ("call",), "answer": ("call", "status", "body")}
"""The functions of an adapter, with what they are called with."""

_numbers = itertools.count(1)


class AdapterFailedError(CodecError):
    """An adapter's function has failed, or has returned what cannot be used."""

    def __init__(self, words: str, place: str, refusal: str | None = None) -> None:
        super().__init__(words)
        self.place = place
        """File and line, for logs."""
        self.refusal = refusal
        """The text of a `ValueError`, by which `request` refuses what a client has sent; else None."""


class AdapterModule:
    """An adapter's file, imported; its modules are forgotten when nobody holds it any more."""

    def __init__(self, file: Path) -> None:
        """Import *file*. Raises `ConfigError`: its path and line, and what is wrong."""
        self._file = file
        package = f"{PACKAGES}{next(_numbers)}"
        weakref.finalize(self, _forget, package).atexit = False
        module: Any = _imported(file, package)
        for name, arguments in FUNCTIONS.items():
            try:
                fault, line = _fault_of(getattr(module, name, None), name, arguments)
            except BaseException as error:  # of a module's `__getattr__`, or of a callable that is no function
                fault, line = f"`{name}` cannot be looked at: {_shown(error)}", 1
            if fault:
                raise ConfigError(f"{file}:{line}: {fault}")
        self._functions: Adapter = module
        self.threads = AdapterThreads()
        sys.setswitchinterval(SWITCH_S)

    def call(self, function: str, *arguments: Any) -> Any:
        """What *function* returns for *arguments*. Raises `AdapterFailedError`, whatever it has raised."""
        try:
            return getattr(self._functions, function)(*arguments)
        except BaseException as error:  # also SystemExit, which would end the thread alone and tell nobody
            refusal = (_text_of(error) or type(error).__name__) if isinstance(error, ValueError) else None
            words = f"the adapter's `{function}` failed: {_shown(error)}"
            raise AdapterFailedError(words, _place(error, self._file), refusal) from None

    def request(self, call: AdapterCall, nonfinite: NonFinite) -> tuple[str, bytes]:
        """The path, and the body as JSON, that `request` makes of *call*. Raises `AdapterFailedError`."""
        made = self.call("request", call)
        try:
            with self.using_result("request"):
                return request_of(made, nonfinite)
        except AdapterFailedError:
            raise
        except CodecError as error:
            words = f"what the adapter's `request` returned cannot be sent: {error}"
            raise AdapterFailedError(words, self.place_of("request")) from None

    @contextmanager
    def using_result(self, function: str) -> Iterator[None]:
        """Use what *function* has returned: it may have code of the adapter's own, such as a mapping's or an array's.

        Raises `AdapterFailedError` for all that it raises, and `CodecError` as it is.
        """
        try:
            yield
        except CodecError:
            raise
        except BaseException as error:  # as in `call`
            words = f"what the adapter's `{function}` returned cannot be used: {_shown(error)}"
            raise AdapterFailedError(words, self.place_of(function)) from None

    def place_of(self, function: str) -> str:
        """File and line of *function*, for logs."""
        code = getattr(inspect.unwrap(getattr(self._functions, function)), "__code__", None)
        return f"{self._file}:{code.co_firstlineno if code is not None else 1}"


# Import


class _SourceLoader(SourceFileLoader):
    """Reads the source each time: `__pycache__` cannot tell two files of one size and second apart."""

    def get_code(self, fullname: str) -> types.CodeType:
        """See `SourceFileLoader`."""
        path = self.get_filename(fullname)
        code: types.CodeType = self.source_to_code(self.get_data(path), path)
        return code


class _Finder:
    """Finds what stands beside an adapter, in the packages made here, and nothing else."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`; a new finder sees files that were written a moment ago."""
        loaders = (_SourceLoader, [".py"]), (ExtensionFileLoader, EXTENSION_SUFFIXES)
        for folder in (path or ()) if name.startswith(PACKAGES) else ():
            if (spec := FileFinder(folder, *loaders).find_spec(name)) is not None:
                return spec
        return None


def _imported(file: Path, package: str) -> types.ModuleType:
    """The module of *file* in a new *package*. Raises `ConfigError`."""
    if _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)
    parent = types.ModuleType(package)
    parent.__path__ = [str(file.parent)]
    sys.modules[package] = parent
    name = f"{package}.{file.stem.replace('.', '_')}"
    spec = importlib.util.spec_from_file_location(name, file, loader=_SourceLoader(name, str(file)))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException as error:  # whatever a file may raise, also SystemExit
        hint = ""
        if isinstance(error, ModuleNotFoundError) and error.name and (file.parent / f"{error.name}.py").exists():
            hint = f"; what stands beside an adapter is imported by `from . import {error.name}`"
        raise ConfigError(f"{_place(error, file)}: not imported: {_shown(error)}{hint}") from None
    return module


def _shown(error: BaseException) -> str:
    text = _text_of(error)
    return f"{type(error).__name__}{': ' if text else ''}{text}"


def _text_of(error: BaseException) -> str:
    try:
        return shortened(str(error.msg if isinstance(error, SyntaxError) else error), EXCEPTION_CHARACTERS)
    except BaseException:  # an exception of the adapter's own, whose text cannot be made
        return ""


def _forget(package: str) -> None:
    for name in [each for each in list(sys.modules) if each == package or each.startswith(f"{package}.")]:
        sys.modules.pop(name, None)


def _fault_of(function: Any, name: str, arguments: tuple[str, ...]) -> tuple[str, int]:
    """What keeps *function* from being the one called *name*, and in which line; an empty text if nothing does."""
    expected = f"{name}({', '.join(arguments)})"
    if not callable(function):
        return f"expected a function `{expected}`", 1
    line = getattr(getattr(inspect.unwrap(function), "__code__", None), "co_firstlineno", 1)
    if inspect.iscoroutinefunction(function):
        return f"`{name}` is a coroutine; it is called in a thread, so leave `async` out", line
    with suppress(ValueError):  # of some functions written in C nothing is known
        signature = inspect.signature(function)
        try:
            signature.bind(*arguments)
        except TypeError:
            return f"expected `{expected}`, got `{name}{signature}`", line
    return "", line


def _place(error: BaseException, file: Path) -> str:
    """Where *error* was raised: the last line of *file* or of a file beside it, or the line of a syntax error."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno or 1}"
    place, traceback = f"{file}:1", error.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        if str(frame.f_globals.get("__name__")).startswith(PACKAGES):
            place = f"{frame.f_code.co_filename}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return place


def import_adapter(file: Path) -> AdapterModule:
    """Import *file*. Raises `ConfigError`, also if it takes longer than `IMPORT_S`: its thread is left alone then."""
    imported: list[AdapterModule | BaseException] = []

    def work() -> None:
        try:
            imported.append(AdapterModule(file))
        except BaseException as error:
            imported.append(error)

    thread = threading.Thread(target=work, name="import of an adapter", daemon=True)
    thread.start()
    thread.join(IMPORT_S)
    if not imported:
        raise ConfigError(f"{file}:1: not imported within {IMPORT_S:g} s")
    if isinstance(imported[0], BaseException):
        raise imported[0]
    return imported[0]


def load_adapters(config: Config) -> dict[str, AdapterModule]:
    """The adapters of *config*, by backend. Raises `ConfigError` for the first that cannot be used."""
    adapters = {}
    for name, backend in config.backends.items():
        if backend.adapter is not None:
            try:
                adapters[name] = import_adapter(Path(backend.adapter))
            except ConfigError as error:
                raise ConfigError(f"backends.{name}.adapter: {error}") from None
    return adapters


async def import_adapters(config: Config) -> dict[str, AdapterModule]:
    """As `load_adapters`, beside the running event loop; no import that hangs keeps the process from ending."""
    return await AdapterThreads().run(lambda: load_adapters(config))


def adapter_problems(config: Config) -> Iterator[tuple[str, str]]:
    """Adapters of *config* that cannot be used: the path of the key, and the reason."""
    for name, backend in config.backends.items():
        if backend.adapter is not None:
            try:
                import_adapter(Path(backend.adapter))
            except ConfigError as error:
                yield f"backends.{name}.adapter", str(error)
