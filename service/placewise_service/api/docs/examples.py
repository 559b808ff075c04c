"""Example requests and answers of the OpenAPI document. A test parses each into its message of the contract."""

from typing import Any

_DECISION_ID = "01932a6e-7c00-7b4e-9d1c-3f2a5b6c7d8e"
_META: dict[str, Any] = {
    "decisionId": _DECISION_ID,
    "policy": "consolidate",
    "snapshotVersion": "42",
    "propensity": 1.0,
    "decideMs": 0.2,
}
_JOB: dict[str, Any] = {
    "id": "job-1",
    "model": "ResNet-50",
    "architecture": "ALL_REDUCE",
    "groups": [{"role": "WORKER", "count": 2, "demand": {"cpuCores": 4, "gpus": 1, "memoryGib": 16}}],
    "totalEpochs": 30,
    "batchSize": 256,
    "datasetSize": "50000",
}

PLACE: dict[str, Any] = {"requestId": "job-1/1", "jobs": [_JOB], "policy": "consolidate", "reserveTtl": "30s"}

PLACED: dict[str, Any] = {
    "decisions": [
        {
            "jobId": "job-1",
            "outcome": "PLACED",
            "assignments": [
                {
                    "task": f"worker-{i}",
                    "role": "WORKER",
                    "node": "node-1",
                    "gpuIndices": [i],
                    "demand": {"cpuCores": 4.0, "gpus": 1.0, "memoryGib": 16.0},
                }
                for i in range(2)
            ],
            "propensity": 1.0,
            "reservationId": "01932a6e-7c00-7b4e-9d1c-3f2a5b6c7d8f",
            "reservationExpireTime": "2026-01-01T12:00:30Z",
        }
    ],
    "meta": _META,
    "requestId": "job-1/1",
}

ADMIT: dict[str, Any] = {
    "queue": "research",
    "jobs": [{"id": "job-2", "model": "ResNet-50", "elastic": {"minGpus": 1, "maxGpus": 8}, "singleGpuSeconds": 7200}],
    "policy": "proteus",
    "explain": True,
}

ADMITTED: dict[str, Any] = {
    "admissions": [
        {"jobId": "job-2", "verdict": "ADMIT", "gpus": 4, "nodes": 1, "gpusPerNode": 4, "rank": 1},
    ],
    "queue": {
        "queue": "research",
        "backlogSeconds": 7200.0,
        "slot": "176000000",
        "v": 1.0,
        "epsilonSeconds": 60.0,
        "tauSeconds": 3600.0,
        "slotDuration": "10s",
        "waitingJobs": 1,
    },
    "meta": {**_META, "policy": "proteus"},
}

PARTITION: dict[str, Any] = {
    "task": {"id": "render-1", "serialScale": 10, "parallelScale": 1000, "kind": "render"},
    "units": ["node-1", "node-2"],
}

PARTITIONED: dict[str, Any] = {
    "outcome": "PLACED",
    "shares": [
        {"node": "node-1", "scale": 600.0, "predictedSeconds": 60.0, "capability": 10.0},
        {"node": "node-2", "scale": 400.0, "predictedSeconds": 60.0, "capability": 6.7},
    ],
    "units": 2,
    "thresholdScale": 120.0,
    "predictedSeconds": 61.0,
    "meta": {**_META, "policy": "threshold"},
}

_NODE: dict[str, Any] = {
    "id": "node-1",
    "capacity": {"cpuCores": 32, "gpus": 2, "memoryGib": 256, "networkGbps": 25},
    "gpus": [{"index": i, "model": "V100", "memoryGib": 16} for i in range(2)],
    "maxJobsPerGpu": 1,
    "state": "READY",
    "telemetry": {"cpuUtil": 0.1, "gpuCelsius": 41, "limitCelsius": 85},
}

NODES: dict[str, Any] = {"nodes": [_NODE], "full": True}

EVENTS: dict[str, Any] = {
    "events": [{"jobId": "job-1", "kind": "STARTED", "eventTime": "2026-01-01T12:00:05Z", "decisionId": _DECISION_ID}]
}

CLUSTER: dict[str, Any] = {
    "cluster": "prod",
    "snapshotVersion": "42",
    "capacity": {"cpuCores": 32.0, "gpus": 2.0, "memoryGib": 256.0, "networkGbps": 25.0},
    "used": {"cpuCores": 8.0, "gpus": 2.0, "memoryGib": 32.0},
    "nodeCount": 1,
    "readyNodeCount": 1,
    "runningJobs": 1,
}

SETTINGS: dict[str, Any] = {
    "placePolicy": "consolidate",
    "explorationRate": 0.02,
    "explorers": [{"policy": "consolidate", "weight": 3}, {"policy": "random", "weight": 1}],
    "queues": [{"queue": "research", "v": 2.0, "slotDuration": "10s"}],
}

PAST: dict[str, Any] = {
    "decisionId": _DECISION_ID,
    "rpc": "Place",
    "decideTime": "2026-01-01T12:00:00Z",
    "place": PLACED,
}

BUNDLE: dict[str, Any] = {"name": "2026.11", "state": "ACTIVE", "digest": "6762af11…"}
