"""Tells systemd the state of the gateway: ready, reloading, stopping, and alive (sd_notify(3)).

systemd names a datagram socket in the environment of a service that it waits for (`Type=notify`); without one, nothing
is sent.
"""

import asyncio
import logging
import os
import re
import socket
from collections.abc import Callable

LOOKS = 4
"""How many proofs of life are sent in the time within which systemd expects one, so that one may be late."""

SEND_S = 0.1
"""How long a message may wait for room in systemd's socket, which holds the event loop, before it is dropped."""

STATUS_CHARACTERS = 500
"""The longest status for `systemctl status`; a longer one is cut."""

log = logging.getLogger("gateway")


class Notifier:
    """Tells the service manager the state of this process, if one has asked for it."""

    def __init__(self, address: str = "", watchdog_s: float = 0.0) -> None:
        """*address*: a path, or a name behind `@`; empty: nobody is told. *watchdog_s*: 0 if there is no watchdog."""
        self._address = address
        self._watchdog_s = watchdog_s
        self._watchdog: asyncio.Task[None] | None = None
        self._is_failing = False

    @classmethod
    def from_environment(cls) -> "Notifier":
        """Read systemd's variables, and remove them from the environment: workers must not speak for the service."""
        address = os.environ.pop("NOTIFY_SOCKET", "")
        watchdog_us = os.environ.pop("WATCHDOG_USEC", "")
        is_meant = os.environ.pop("WATCHDOG_PID", "") in ("", str(os.getpid()))
        return cls(address, int(watchdog_us) / 1e6 if is_meant and watchdog_us.isdecimal() else 0.0)

    def start_watchdog(self, stalled: Callable[[], str | None]) -> None:
        """Send proofs of life from the running event loop, as long as *stalled* returns None."""
        if self._address and self._watchdog_s:
            self._watchdog = asyncio.create_task(self._prove_alive(stalled))

    async def _prove_alive(self, stalled: Callable[[], str | None]) -> None:
        while True:
            if (reason := stalled()) is None:
                self.tell("WATCHDOG=1", "")
            else:
                log.error("systemd's watchdog is not told that the gateway is alive: %s", reason)
            await asyncio.sleep(self._watchdog_s / LOOKS)

    def tell(self, state: str, status: str) -> None:
        """Send *state*, lines as in sd_notify(3), and the *status* that `systemctl status` shows; empty: as before."""
        if not self._address:
            return
        if status:
            state += f"\nSTATUS={' '.join(status.split())[:STATUS_CHARACTERS]}"
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.settimeout(SEND_S)
                sender.sendto(state.encode(errors="replace"), re.sub("^@", "\0", self._address))
            self._is_failing = False
        except OSError as error:
            if not self._is_failing:
                log.warning("systemd cannot be told `%s` at %s: %s", state.partition("\n")[0], self._address, error)
            self._is_failing = True
