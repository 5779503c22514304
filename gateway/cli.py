"""The command line: `serve`, `check`, `schema`, `doctor`, `adapter`, `demo`.

Exit codes: 0 success, 1 a failure at run time (such as an address in use), 2 a wrong command or configuration.
"""

import argparse
import asyncio
import logging
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import msgspec

from gateway import __version__, demo
from gateway.adapter_trial import try_adapter
from gateway.app import file_problems, settle
from gateway.backend.first_look import look_at
from gateway.backend.tasks import Tasks
from gateway.certificates import tls_warnings
from gateway.config import Config, for_backend, inspect, inspect_bytes, json_schema, load
from gateway.config.values import nearest
from gateway.doctor import Given, examine
from gateway.errors import ConfigError
from gateway.plan import who_answers
from gateway.process import ports
from gateway.process.application import Application
from gateway.process.reload import Reloader
from gateway.process.supervisor import Supervisor
from gateway.process.systemd import Notifier
from gateway.telemetry.log_writer import ANNOUNCE, LogWriter

_OF_KSERVE = ("predictor_host", "model_name", "http_port")
"""Options that KServe appends to the arguments of a transformer's container, each with a value.

The configuration has these values as `${PREDICTOR_HOST}`, `${MODEL_NAME}` and `${HTTP_PORT}`; docs/kubernetes.md.
"""

log = logging.getLogger("gateway")
announce = logging.getLogger(ANNOUNCE)


def main(arguments: list[str] | None = None) -> int:
    """Run the command in *arguments* (default: those of the process), and return its exit code."""
    known = parser()
    options = known.parse_args(arguments)
    if options.run is not _serve:  # only `serve` handles SIGHUP, which `__main__` has blocked
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
    if options.run is None:
        known.print_help(sys.stderr)
        return 2
    try:
        return int(options.run(options))
    except ConfigError as error:
        return _fail(error, 2)
    except BrokenPipeError:  # the reader of the output has ended, as `head` does
        return 1
    except OSError as error:
        return _fail(error.strerror or error, 1)
    except KeyboardInterrupt:
        return 130


def _fail(reason: object, code: int) -> int:
    """Print each line of *reason* on standard error, and return *code*."""
    print(f"tensor-gateway: {reason}".replace("\n", "\ntensor-gateway: "), file=sys.stderr)
    return code


_EXAMPLES = """\
examples:
  tensor-gateway demo                                  see it work, with a server of its own
  tensor-gateway doctor http://127.0.0.1:8000          what a server speaks, and what to set for it
  tensor-gateway serve --backend http://127.0.0.1:8000 in front of one server
  tensor-gateway check gateway.yaml                    check a configuration, and
  tensor-gateway serve --config gateway.yaml           serve what it says
"""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors say what was probably meant."""

    def error(self, message: str) -> NoReturn:
        """See argparse."""
        if message.endswith("--config --backend is required"):  # also where a file or URL stands without its option
            message = "say what to serve, by `--config FILE` or `--backend URL`"
        wrong, *choices = re.findall("'([^']*)'", message) if "invalid choice" in message else [""]
        meant = nearest(wrong, choices) if choices else None
        super().error(f"{message}; did you mean {meant}?" if meant else message)


def _address(text: str) -> str:
    """The address in *text*; a port alone is one of this machine."""
    return f"127.0.0.1:{text}" if text.isdecimal() else text


def parser() -> argparse.ArgumentParser:
    """The parser of all commands. In what it parses, `run` is the command's function; None without a command."""
    parser = _Parser(
        prog="tensor-gateway",
        description="Gives JSON-only inference servers the binary tensor extension of Triton and KServe.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"tensor-gateway {__version__}")
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(title="commands", metavar="{serve,check,schema,doctor,adapter,demo}")

    def command(run: Callable[[argparse.Namespace], int], words: str) -> argparse.ArgumentParser:
        known = commands.add_parser(run.__name__.lstrip("_"), help=words, description=run.__doc__)
        known.set_defaults(run=run, usage=known)
        return known

    serve = command(_serve, "run the gateway")
    source = serve.add_mutually_exclusive_group(required=True).add_argument
    source("--config", metavar="FILE", type=Path, help="serve what this YAML file configures")
    source("--backend", metavar="URL", help="serve in front of this one server, such as http://127.0.0.1:8000")
    add = serve.add_argument_group("with --backend").add_argument
    add("--listen", metavar="[HOST:]PORT", type=_address, help="where clients connect (default 127.0.0.1:8080)")
    add("--admin", metavar="[HOST:]PORT", type=_address, help="metrics and health (default 127.0.0.1:9090)")
    add("--grpc", metavar="[HOST:]PORT", type=_address, help="where clients of gRPC connect (default: nowhere)")
    add("--workers", metavar="N", help="processes that share the port (default 1; auto: one per core)")
    log_words = "how requests are logged to standard output (default json, on a terminal text)"
    add("--log", choices=("json", "text", "none"), help=log_words)
    add = serve.add_argument
    add("--watch", action="store_true", help="with --config: reload when the file changes, as on SIGHUP")
    look_words = "do not ask the backends at the start who they are, which wakes servers that scale to zero"
    add("--no-first-look", action="store_true", help=look_words)
    for name in _OF_KSERVE:
        add(f"--{name}", help=argparse.SUPPRESS)

    add = command(_check, "check a configuration").add_argument
    add("files", metavar="FILE", nargs="+", help="the files; - for standard input, with paths of the working folder")

    command(_schema, "print the JSON Schema of the configuration")

    add = command(_doctor, "find out what a server speaks, and what to set for it").add_argument
    add("url", metavar="URL", help="the server, such as http://127.0.0.1:8000")
    add("--model", metavar="M", default="", help="what to try; without it the only model, if there is one")
    add("--yaml", action="store_true", help="print nothing but the configuration; findings go to standard error")
    sent = "sent with every question; ${NAME} is taken from the environment, ${file:PATH} from a file. May be repeated"
    add("-H", "--header", metavar="'NAME: VALUE'", action="append", default=[], help=sent)
    add("--path", metavar="PATH", help="where a server that speaks no protocol takes inferences, such as /predict")
    sample = "JSON that it takes there; without it what its /openapi.json says. Several: what differs is an input"
    add("--sample", metavar="FILE", action="append", default=[], help=sample)
    add("--ca", metavar="FILE", help="for https: who has signed the server's certificate (default: the system's)")
    add("--certificate", metavar="FILE", help="for https: the certificate to show to the server")
    add("--key", metavar="FILE", help="its key")
    add("--server-name", metavar="NAME", help="for https: the name in the server's certificate, if it is not the URL's")

    add = command(_adapter, "see what an adapter of `dialect: python` makes of a sample").add_argument
    add("file", metavar="FILE", type=Path, help="the Python file with `request` and `answer`")
    sample_words = "a request of the protocol in JSON, as a client sends it"
    add("--sample", metavar="FILE", type=Path, required=True, help=sample_words)
    add("--answer", metavar="FILE", type=Path, help="the server's answer in JSON, of which the outputs are made")
    add("--model", metavar="M", default="model", help="the model's name (default: model)")
    add("--version", metavar="V", help="the model's version (default: none)")

    add = command(_demo, "see one binary inference, step by step").add_argument
    add("--once", action="store_true", help="exit afterwards; without this, both go on serving")
    return parser


def _check(options: argparse.Namespace) -> int:
    """Check configurations, each by itself.

    Every error and warning is a line on standard error: file, line, key, reason. Exit code 0 without errors, else 2.
    """
    return max([_checked(file) for file in options.files])


def _checked(file: str) -> int:
    """Print the errors and warnings of *file*, and return its exit code."""
    found = inspect_bytes(sys.stdin.buffer.read(), "-") if file == "-" else inspect(Path(file))
    if found.read is not None:
        # errors inside of files that keys name, such as certificates, except for keys that have an error already
        for key, reason in file_problems(found.read):
            found.add(found.errors, key, reason)
        for key, reason in tls_warnings(found.read):
            found.add(found.warnings, key, reason)
    for text in found.texts():
        print(text, file=sys.stderr)
    if found.config is None:
        return 2
    print(f"{file}: valid; backends: {', '.join(found.config.backends)}{who_answers(found.config)}", flush=True)
    return 0


def _schema(options: argparse.Namespace) -> int:
    """Print the configuration's JSON Schema, which editors use to check and complete the file."""
    print(msgspec.json.format(msgspec.json.encode(json_schema()), indent=2).decode())
    return 0


def _doctor(options: argparse.Namespace) -> int:
    """Ask a running server how the gateway is put in front of it, with inferences straight and through a gateway.

    Exit code 0: it works as it is; 1: with what is named; 2: it cannot be reached or used.
    """
    keys = ("ca", "certificate", "key", "server_name")
    tls = {key: value for key in keys if (value := getattr(options, key)) is not None}
    given = Given(options.header, tls, options.path, options.sample)
    return asyncio.run(examine(options.url, options.model, given, only_yaml=options.yaml))


def _adapter(options: argparse.Namespace) -> int:
    """Show the path and the body that an adapter makes of a request, and the outputs that it makes of an answer.

    Exit code 0: all of it can be sent; 1: an output cannot; 2: a file cannot be read, or a function fails.
    """
    return try_adapter(options.file, options.sample, options.answer, model=options.model, version=options.version)


def _serve(options: argparse.Namespace) -> int:
    """Run the gateway until SIGTERM or SIGINT; requests in flight are then finished.

    SIGHUP reads the file again: it takes effect as a whole, or, if anything in it is wrong, not at all.
    """
    notifier = Notifier.from_environment()
    _take_from_kserve(options)
    of_backend = {key: getattr(options, key) for key in ("listen", "admin", "grpc", "workers")}
    if options.config is None:
        if options.watch:
            options.usage.error("--watch goes with --config: there is no file to watch")
        access = options.log or ("text" if sys.stdout.isatty() else "json")
        config = for_backend(options.backend, access, **of_backend)
    else:
        if any((options.log, *of_backend.values())):
            options.usage.error(
                "--listen, --admin, --grpc, --workers and --log go with --backend; with --config set them in the file"
            )
        config = load(options.config)
    reloader = Reloader(options.config, notifier)
    writer = LogWriter(config.logging.level, config.logging.format)
    writer.start()
    try:
        return asyncio.run(_serve_until_stopped(config, reloader, notifier, options))
    except OSError as error:
        raise ports.explained(error, config) from None
    finally:
        writer.stop()


def _take_from_kserve(options: argparse.Namespace) -> None:
    """Put the arguments that KServe has appended into the environment, from which the configuration's file reads."""
    given = {name.upper(): value for name in _OF_KSERVE if (value := getattr(options, name)) is not None}
    if given:
        os.environ.update(given)
        options.workers = None  # KServe derives it from containerConcurrency, which counts requests and not processes


async def _serve_until_stopped(
    config: Config, reloader: Reloader, notifier: Notifier, options: argparse.Namespace
) -> int:
    for warning in tls_warnings(config):
        log.warning("%s: %s", *warning)
    stopped = _stop_event()
    # a hangup from now on waits until it can be served; an earlier one was blocked until now, see `__main__`
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reloader.request)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
    application = await (Application if config.workers == 1 else Supervisor).start(config)
    beside = Tasks()
    try:
        settle()
        announce.info("tensor-gateway %s serves clients on %s", __version__, application.listen_url)
        for url in application.grpc_urls:
            announce.info("gRPC on %s", url)
        announce.info("status page, metrics and health on %s", application.admin_url)
        serving = f"clients on {application.listen_url}, status page and metrics on {application.admin_url}"
        notifier.tell("READY=1", serving)
        notifier.start_watchdog(application.stalled)
        if not options.no_first_look:
            beside.begin(look_at(config, application.name))
        reloader.start(application.replace, application.metrics, watch=options.watch)
        await stopped.wait()
        await reloader.stop()
        notifier.tell("STOPPING=1", "draining: requests in flight are finished")
        return await _drain(application)
    finally:
        await reloader.stop()
        await beside.close()
        await application.stop()


async def _drain(application: Application) -> int:
    """Let requests in flight finish, unless a (second) SIGINT comes, and return the exit code."""
    draining = asyncio.ensure_future(application.drain())
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, draining.cancel)
    announce.info("draining: requests in flight are finished; Ctrl-C (SIGINT) cuts them off")
    try:
        await draining
    except asyncio.CancelledError:
        announce.info("interrupted: what was in flight is cut off")
        return 130
    return 0


def _stop_event() -> asyncio.Event:
    """An event that SIGTERM and SIGINT set."""
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    return stopped


def _demo(options: argparse.Namespace) -> int:
    """Start an embedded JSON-only server and the gateway, and show one binary inference step by step."""
    return asyncio.run(demo.demonstrate(_stop_event, once=options.once))
