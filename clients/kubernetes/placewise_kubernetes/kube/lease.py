"""The adapter's lease as a Lease of coordination.k8s.io: the apiserver refuses a write that names an older version."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from typing import Any

from placewise_client.adapter.lease import DURATION_S, Lease, LeaseStoreError
from placewise_kubernetes.kube.client import KubeClient, KubeError, KubeUnreachableError
from placewise_kubernetes.kube.paths import collection_path, object_path

NOT_FOUND, CONFLICT = 404, 409
_ROOT = "/apis/coordination.k8s.io/v1"


class KubeLease(Lease):
    """`name` is "namespace/name"; `identity` is the same after a restart, so that it need not wait."""

    def __init__(
        self, client: KubeClient, name: str, identity: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(name, identity, clock)
        self._client = client
        self._namespace, _, self._object = name.partition("/")
        self._collection = collection_path(_ROOT, self._namespace, "leases")
        self._path = object_path(_ROOT, self._namespace, "leases", self._object)

    async def _read(self) -> tuple[str, str]:
        try:
            document = await self._client.get(self._path)
        except KubeError as error:
            if error.status == NOT_FOUND:
                return "", ""
            raise LeaseStoreError(str(error)) from error
        except KubeUnreachableError as error:
            raise LeaseStoreError(str(error)) from error
        holder = str(document.get("spec", {}).get("holderIdentity") or "")
        return holder, document["metadata"]["resourceVersion"]

    async def _write(self, version: str, holder: str) -> bool:
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": holder, "leaseDurationSeconds": int(DURATION_S), "renewTime": now}
        try:
            if version:
                body = {"metadata": {"resourceVersion": version}, "spec": spec}
                await self._client.patch(self._path, body)
            else:
                await self._client.create(self._collection, self._document(spec))
        except KubeError as error:
            if error.status == CONFLICT:
                return False
            raise LeaseStoreError(str(error)) from error
        except KubeUnreachableError as error:
            raise LeaseStoreError(str(error)) from error
        return True

    def _document(self, spec: dict[str, Any]) -> dict[str, Any]:
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._object, "namespace": self._namespace},
            "spec": spec,
        }
