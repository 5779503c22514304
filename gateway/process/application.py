"""The gateway in one process: a data plane and its admin listener.

Not here: several processes (`supervisor`, `worker`).
"""

import time
from collections.abc import Iterator

from prometheus_client import Metric

from gateway.app import DataPlane, new_name, require_usable_files
from gateway.config import Config
from gateway.process.admin import AdminListener
from gateway.process.descriptors import fit
from gateway.process.reload import keep_fixed
from gateway.process.status import Answered, Listens, Status, status_of
from gateway.telemetry.metrics import Metrics


class Application:
    """A data plane and its admin listener in one process."""

    def __init__(self, config: Config) -> None:
        """Must be called on a running event loop; `start` and `stop` must be awaited."""
        config = fit(config)
        self.name = new_name()
        self.metrics = Metrics(lambda: [self.data_plane.reading()])
        self.data_plane = DataPlane(config, self.name, self.metrics.add)
        self.gateway = self.data_plane.gateway
        self.listen_url = ""
        self.grpc_urls: list[str] = []
        """The URLs for gRPC; empty if it is not configured."""
        self.admin_url = ""
        self._is_serving = False
        self._admin = AdminListener(
            config.admin, lambda: self.data_plane.config, self._collect, self._not_ready, self._status
        )

    @classmethod
    async def start(cls, config: Config) -> "Application":
        """Build everything, open both listeners and serve.

        Raises `OSError` if an address cannot be used, and `ConfigError` for certificates that cannot be used.
        """
        require_usable_files(config)
        application = cls(config)
        try:
            application.admin_url = await application._admin.start()
            await application.data_plane.start()
        except BaseException:
            await application.stop()
            raise
        application.listen_url, *application.grpc_urls = application.data_plane.urls
        application._is_serving = True
        return application

    async def _collect(self) -> Iterator[Metric]:
        self.data_plane.count()
        return self.metrics.collect()

    def _not_ready(self) -> str | None:
        if self.gateway.is_draining:
            return "draining"
        return self.data_plane.not_usable() if self._is_serving else "starting"

    def stalled(self) -> str | None:
        """See `Supervisor.stalled`. Always None: the only event loop calls this, so it runs."""
        return None

    async def _status(self) -> Status:
        self.data_plane.count()
        listens = Listens(self.listen_url, self.admin_url, self.grpc_urls)
        reading = Answered(self.data_plane.reading(), answered_s=time.time())
        return status_of(self.data_plane.config, listens, [reading], self.metrics, self._not_ready())

    async def replace(self, config: Config) -> list[str]:
        """See `Reloadable`."""
        config, kept = keep_fixed(config, self.data_plane.config)
        await self.data_plane.commit(await self.data_plane.prepare(fit(config, self.data_plane.config)))
        return kept

    async def drain(self) -> None:
        """See `DataPlane.drain`; meanwhile the admin listener answers that the gateway is not ready."""
        await self.data_plane.drain()

    async def stop(self) -> None:
        """Close both listeners and all connections at once."""
        self._is_serving = False
        await self.data_plane.stop()
        await self._admin.stop()
