"""The command line: `serve`, `check`, `schema`, `demo`.

Exit codes: 0 success, 1 a failure at run time (such as an address in use), 2 a wrong command or configuration.
Not here: how the gateway is put together (`app`) and run (`process`).
"""

import argparse
import asyncio
import logging
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec

from gateway import __version__, demo
from gateway.app import file_problems, settle
from gateway.certificates import tls_warnings
from gateway.config import (
    MAX_FILE_BYTES,
    Config,
    Inspected,
    for_backend,
    inspect,
    inspect_bytes,
    json_schema,
    load,
    parse,
)
from gateway.errors import ConfigError
from gateway.process.application import Application
from gateway.process.reload import Reloader
from gateway.process.supervisor import Supervisor
from gateway.process.systemd import Notifier
from gateway.telemetry.log_writer import ANNOUNCE, LogWriter

COMPLETE_FILES = {"bash": "_shtab_compgen_files", "zsh": "_files", "tcsh": "f"}
"""What completes an argument that is a file, for shtab; the same as `shtab.FILE`, which may not be installed."""

log = logging.getLogger("gateway")
announce = logging.getLogger(ANNOUNCE)


def main(arguments: list[str] | None = None) -> int:
    """Run the command in *arguments* (default: those of the process); the exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.run is not _serve:  # which has a handler for it; see `__main__`
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
    try:
        code: int = options.run(options, parser)
    except ConfigError as error:
        print(f"tensor-gateway: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"tensor-gateway: {error.strerror or error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tensor-gateway",
        description="Gives JSON-only inference servers the binary tensor extension of Triton and KServe.",
        epilog="To see it work: tensor-gateway demo",
    )
    parser.add_argument("--version", action="version", version=f"tensor-gateway {__version__}")
    parser.add_argument(
        "--print-completion", action=_PrintCompletion, choices=("bash", "zsh", "tcsh"), help="completion for this shell"
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="{serve,check,schema,demo}")

    serve = commands.add_parser(
        "serve",
        help="run the gateway",
        description="Run the gateway until SIGTERM or SIGINT; requests in flight are then finished. SIGHUP reads the "
        "file again: it takes effect as a whole, or, if anything in it is wrong, not at all.",
    )
    source = serve.add_mutually_exclusive_group(required=True)
    file = source.add_argument("--config", type=Path, metavar="FILE", help="serve what this YAML file configures")
    file.complete = COMPLETE_FILES  # type: ignore[attr-defined]  # read by shtab
    source.add_argument(
        "--backend",
        metavar="URL",
        help="serve in front of this one JSON-only server, such as http://127.0.0.1:8000, without a file",
    )
    serve.add_argument(
        "--listen", metavar="HOST:PORT", help="with --backend: where clients connect (default 127.0.0.1:8080)"
    )
    serve.add_argument(
        "--admin", metavar="HOST:PORT", help="with --backend: metrics and health (default 127.0.0.1:9090)"
    )
    serve.add_argument(
        "--workers",
        metavar="N",
        help="with --backend: processes that share the port (default 1; auto: one per core)",
    )
    serve.add_argument(
        "--log",
        choices=("json", "text", "none"),
        help="with --backend: how requests are logged to standard output (default json, on a terminal text)",
    )
    serve.add_argument("--watch", action="store_true", help="with --config: reload when the file changes, as on SIGHUP")
    serve.set_defaults(run=_serve)

    check = commands.add_parser(
        "check",
        help="check a configuration",
        description="Check a configuration. Every error and warning is a line on standard error: file, line, key, "
        "reason. Exit code 0 without errors, else 2.",
    )
    file = check.add_argument(
        "file",
        metavar="FILE",
        help="the YAML file to check; - for standard input, where paths are relative to the working directory",
    )
    file.complete = COMPLETE_FILES  # type: ignore[attr-defined]  # read by shtab
    check.set_defaults(run=_check)

    schema = commands.add_parser(
        "schema",
        help="print the JSON Schema of the configuration",
        description="Print the JSON Schema of the configuration, which editors use to check and complete the file.",
    )
    schema.set_defaults(run=_schema)

    demonstration = commands.add_parser(
        "demo",
        help="see one binary inference, step by step",
        description="Start an embedded JSON-only server and the gateway, and show one binary inference step by step.",
    )
    demonstration.add_argument("--once", action="store_true", help="exit afterwards; without this, both go on serving")
    demonstration.set_defaults(run=_demo)
    return parser


class _PrintCompletion(argparse.Action):
    """Prints the script that completes commands and options in a shell, and exits."""

    def __call__(self, parser: argparse.ArgumentParser, *values: Any) -> None:
        try:
            import shtab  # noqa: PLC0415  the only use of it
        except ModuleNotFoundError:
            parser.error("shtab, which makes this, is not installed: pip install 'tensor-gateway[completion]'")
        print(shtab.complete(parser, values[1]))
        parser.exit()


def _check(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    if options.file == "-":
        found = inspect_bytes(sys.stdin.buffer.read(MAX_FILE_BYTES + 1), "-")
    else:
        found = inspect(Path(options.file))
    _prove(found)
    for text in found.texts():
        print(text, file=sys.stderr)
    if found.config is None:
        return 2
    print(f"{options.file}: valid; backends: {', '.join(found.config.backends)}")
    return 0


def _prove(found: Inspected) -> None:
    """Add what is wrong with the content of files that keys name, but for keys with errors already."""
    if found.read is None:
        return
    for key, reason in file_problems(found.read):
        found.add_error(key, reason)
    for key, reason in tls_warnings(found.read):
        found.add_warning(key, reason)


def _schema(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    print(msgspec.json.format(msgspec.json.encode(json_schema()), indent=2).decode())
    return 0


def _serve(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    notifier = Notifier.from_environment()
    if options.config is not None:
        if options.listen or options.admin or options.workers is not None or options.log:
            parser.error("--listen, --admin, --workers and --log go with --backend; with --config set them in the file")
        reloader = Reloader(options.config, notifier)
        config = load(options.config)
    else:
        if options.watch:
            parser.error("--watch goes with --config: there is no file to watch")
        reloader = Reloader(None, notifier)
        access = options.log or ("text" if sys.stdout.isatty() else "json")
        config = for_backend(options.backend, options.listen, options.admin, access, options.workers)
    writer = LogWriter(config.logging.level)
    writer.start()
    try:
        return asyncio.run(_serve_until_stopped(config, reloader, notifier, watch=options.watch))
    finally:
        writer.stop()


async def _serve_until_stopped(config: Config, reloader: Reloader, notifier: Notifier, *, watch: bool) -> int:
    stopped = _stop_event()
    # from now on a hangup is kept until it can be done; those that came earlier were held back, see `__main__`
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reloader.request)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
    application = await (Application if config.workers == 1 else Supervisor).start(config)
    try:
        settle()
        announce.info("tensor-gateway %s serves clients on %s", __version__, application.listen_url)
        announce.info("metrics and health on %s", application.admin_url)
        notifier.ready(f"clients on {application.listen_url}, metrics and health on {application.admin_url}")
        notifier.start_watchdog(application.stalled)
        reloader.start(application, watch=watch)
        await stopped.wait()
        await reloader.stop()
        notifier.stopping()
        announce.info("draining: no new connections; requests in flight are finished")
        await application.drain()
    finally:
        await reloader.stop()
        await application.stop()
        notifier.stop()
    return 0


def _stop_event() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    return stopped


def _demo(options: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    return asyncio.run(_demonstrate(once=options.once))


async def _demonstrate(*, once: bool) -> int:
    stopped = _stop_event()
    async with demo.JsonServer.on_port(8000) as server:
        config = parse(demo.configuration(server.url))
        application = await Application.start(config)
        try:
            exact = await demo.show(server, application.listen_url, application.admin_url)
            if not exact or once:
                return 0 if exact else 1
            print(demo.next_steps(server.url, application.listen_url, application.admin_url), flush=True)
            await stopped.wait()
            return 0
        finally:
            await application.stop()
