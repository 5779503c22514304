"""A gateway as its operators see it, which serves clients in its own process."""

from collections.abc import Generator, Iterator
from contextlib import AsyncExitStack
from typing import Any, Self

from gateway.app import DataPlane, file_problems, new_name
from gateway.config import Config
from gateway.errors import ConfigError
from gateway.process.admin import AdminListener
from gateway.process.descriptors import fit
from gateway.process.reload import keep_fixed
from gateway.process.status import status_of
from gateway.serving.gateway import Gateway
from gateway.telemetry.metrics import Metrics
from gateway.telemetry.reading import Reading


class Application:
    """A gateway with its admin listener."""

    data_plane: DataPlane
    gateway: Gateway

    def __init__(self, config: Config) -> None:
        """Must be called on a running event loop; `start` and `stop` must be awaited."""
        self.config = fit(config)
        """The configuration in effect."""
        self.name = new_name()
        self.metrics = Metrics()
        self.listen_url = ""
        """Where clients are served; empty until they are."""
        self.grpc_urls: list[str] = []
        """The URLs for gRPC; empty if it is not configured."""
        self.admin_url = ""
        self._admin = AdminListener(self)
        self._ending = AsyncExitStack()
        """What `stop` does, the last first."""
        self._ending.push_async_callback(self._admin.stop)

    @classmethod
    async def start(cls, config: Config) -> Self:
        """Build everything, open all listeners and serve.

        Raises `OSError` if an address cannot be used or a worker not started, `ConfigError` for wrong certificates.
        """
        for key, reason in file_problems(config):  # here once, and not in every worker
            raise ConfigError(f"{key}: {reason}")
        running = cls(config)
        try:
            running.admin_url = await running._admin.start()
            running.listen_url, *running.grpc_urls = await running._serve()
        except BaseException:
            await running.stop()
            raise
        return running

    async def replace(self, config: Config) -> list[str]:
        """Serve by *config* from now on. Returns the keys that need a restart and keep their old values.

        Raises `ConfigError` or `OSError`; the old configuration then stays in effect.
        """
        config, kept = keep_fixed(config, self.config)
        await self._change(fit(config, self.config))
        return kept

    async def drain(self) -> None:
        """See `DataPlane.drain`; meanwhile the admin listener answers that the gateway is not ready."""
        await self.data_plane.drain()

    async def stop(self) -> None:
        """Close all listeners and connections at once."""
        await self._ending.aclose()

    def stalled(self) -> str | None:
        """Why the watchdog and the liveness probe should end the gateway, in words; None if they should not."""
        return None

    async def _serve(self) -> list[str]:
        """Serve clients; returns the URLs, that for HTTP/1.1 first."""
        self.data_plane = DataPlane(self.config, self.name, self.metrics.add)
        self._ending.push_async_callback(self.data_plane.stop)
        self.gateway = self.data_plane.gateway
        await self.data_plane.start()
        return self.data_plane.urls

    async def _change(self, config: Config) -> None:
        """Let all processes serve by *config*, or none, see `replace`."""
        await self.data_plane.replace(config)
        self.config = config

    def _readings(self) -> list[Reading]:
        """The last readings of the processes that serve clients; what was counted with them is in the metrics."""
        if not self.listen_url:
            return []
        self.data_plane.count()
        return [self.data_plane.reading()]

    def exposition(self) -> Iterator[str]:
        """The text of the metrics, in pieces."""
        return self.metrics.exposition(self._readings())

    def not_ready(self) -> str | None:
        """Why clients should not come; None if they should."""
        if not self.listen_url:
            return "starting"
        return "draining" if self.gateway.is_draining else self.data_plane.not_usable()

    def status(self) -> Generator[None, None, dict[str, Any]]:
        """Makes the data of the status page, in steps."""
        urls = {"listen": self.listen_url, "admin": self.admin_url, "grpc": self.grpc_urls}
        return status_of(self.config, urls, self._readings(), self.metrics, self.not_ready())
