"""The GPUs of running jobs as the service knows them: an earlier life of the adapter has reported them."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from placewise.v1.cluster_pb2 import GetClusterRequest, RunningJob
from placewise_client.adapter.native import AdapterSettings
from placewise_client.aio import AsyncClient
from placewise_client.errors import NotFoundError, PlacewiseError
from placewise_kubernetes.gang.devices.reported import GpusByNode, gpus_by_node

log = logging.getLogger(__name__)

_TIMEOUT_S = 2.0
_TIMEOUT_S_PER_NODE = 0.002


class RunningAsker:
    """Asks the service for the jobs that it takes for running."""

    def __init__(self, client: AsyncClient, settings: AdapterSettings) -> None:
        self._client = client
        self._settings = settings

    async def __call__(self, nodes: int) -> Mapping[str, GpusByNode] | None:
        """GPUs by job, in a cluster of so many nodes; None if the service does not answer."""
        timeout_s = _TIMEOUT_S + _TIMEOUT_S_PER_NODE * nodes
        request = GetClusterRequest(cluster=self._settings.cluster, full=True)
        try:
            cluster = await self._client.get_cluster(request, timeout_s=timeout_s, retry=None)
        except NotFoundError:
            return {}
        except PlacewiseError as error:
            log.warning("GPUs that claims hold are left out until the service shows its running jobs: %s", error)
            return None
        running = (job for job in cluster.jobs if job.state == RunningJob.RUNNING)
        return {job.job_id: gpus_by_node(job.assignments) for job in running}
