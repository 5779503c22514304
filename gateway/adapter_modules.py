"""Adapters of `dialect: python`: their files are imported, and their functions called in threads.

Each backend has a module of its own, also where two name the same file. An adapter imports the files beside it by
`from . import NAME`: their folder is a package for this one module, without an `__init__.py` and not on `sys.path`. So
a reload imports them anew as well, and nothing old stays in `sys.modules`. Not here: what the functions get and return
(`codec.dialects.arrays`).
"""

import asyncio
import importlib.util
import inspect
import itertools
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, FileFinder, ModuleSpec, SourceFileLoader
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

from gateway.adapter import Adapter
from gateway.codec.v2.error_bodies import shortened
from gateway.config import Config
from gateway.errors import CodecError, ConfigError

T = TypeVar("T")

MAX_THREADS = 64
"""How many calls of one adapter run at once; others wait, within `timeouts.total`. Threads wait more than they work:
what they do in Python, they do one after the other."""

IMPORT_S = 60.0
"""How long a reload waits for imports, so that one that hangs does not end all reloads."""

EXCEPTION_CHARACTERS = 1000
"""How many characters of an exception's text are repeated."""

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

    def call(self, function: str, *arguments: Any) -> Any:
        """What *function* returns for *arguments*. Raises `AdapterFailedError`, whatever it has raised."""
        try:
            return getattr(self._functions, function)(*arguments)
        except BaseException as error:  # also SystemExit, which would end the thread alone and tell nobody
            refusal = (_text_of(error) or type(error).__name__) if isinstance(error, ValueError) else None
            words = f"the adapter's `{function}` failed: {_shown(error)}"
            raise AdapterFailedError(words, _place(error, self._file), refusal) from None

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


def load_adapters(config: Config) -> dict[str, AdapterModule]:
    """The adapters of *config*, by backend. Raises `ConfigError` for the first that cannot be used."""
    adapters = {}
    for name, backend in config.backends.items():
        if backend.adapter is not None:
            try:
                adapters[name] = AdapterModule(Path(backend.adapter))
            except ConfigError as error:
                raise ConfigError(f"backends.{name}.adapter: {error}") from None
    return adapters


async def import_adapters(config: Config) -> dict[str, AdapterModule]:
    """As `load_adapters`, beside the running event loop. Raises `ConfigError`, also after `IMPORT_S`."""
    try:
        async with asyncio.timeout(IMPORT_S):
            return await AdapterThreads().run(lambda: load_adapters(config))
    except TimeoutError:
        raise ConfigError(f"backends.*.adapter: an adapter was not imported within {IMPORT_S:g} s") from None


def adapter_problems(config: Config) -> Iterator[tuple[str, str]]:
    """Adapters of *config* that cannot be used: the path of the key, and the reason."""
    for name, backend in config.backends.items():
        if backend.adapter is not None:
            try:
                AdapterModule(Path(backend.adapter))
            except ConfigError as error:
                yield f"backends.{name}.adapter", str(error)


# Threads

_Job = tuple[Callable[[], Any], Callable[[Any, BaseException | None], object]]


class AdapterThreads:
    """The threads in which the functions of one adapter run, so that none of them holds the event loop.

    They are begun as they are needed, and end with this object. As daemons they keep no process from ending, whatever
    an adapter waits for.
    """

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(MAX_THREADS)
        self._idle: list[SimpleQueue[_Job | None]] = []

    def __del__(self) -> None:
        for jobs in self._idle:
            jobs.put(None)

    async def run(self, function: Callable[[], T]) -> T:
        """What *function* returns or raises. If the caller is cancelled, the thread goes on and nobody gets its result.

        A thread that goes on keeps its place among `MAX_THREADS`.
        """
        await self._free.acquire()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        try:
            jobs = self._idle.pop() if self._idle else _begin_thread()
        except BaseException:
            self._free.release()
            raise

        def tell(result: T, error: BaseException | None) -> None:
            loop.call_soon_threadsafe(self._end, jobs, done, result, error)

        jobs.put((function, tell))
        return await done

    def _end(
        self, jobs: "SimpleQueue[_Job | None]", done: "asyncio.Future[T]", result: T, error: BaseException | None
    ) -> None:
        """The thread that *jobs* go to has nothing to do any more."""
        self._idle.append(jobs)
        self._free.release()
        if done.done():
            return
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)


def _begin_thread() -> "SimpleQueue[_Job | None]":
    jobs: SimpleQueue[_Job | None] = SimpleQueue()
    threading.Thread(target=_work, args=(jobs,), name="adapter", daemon=True).start()
    return jobs


def _work(jobs: "SimpleQueue[_Job | None]") -> None:
    """Do *jobs* until None comes. Between two of them nothing of a request is held."""
    while (job := jobs.get()) is not None:
        function, tell = job
        result = error = None
        try:
            result = function()
        except Exception as raised:
            error = raised
        except BaseException as raised:  # the event loop, which raises it again, would end by SystemExit
            error = RuntimeError(f"{type(raised).__name__} in a thread")
        try:
            tell(result, error)
        except RuntimeError:  # the event loop has ended meanwhile
            return
        del job, function, tell, result, error
