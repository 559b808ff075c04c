"""The figures of a benchmark as one flat object: ratios to the echo first, since only they travel between machines."""

from typing import Any

import numpy as np

from placewise_service.bench.load import LoadPlan, Result


def figures(plan: LoadPlan, result: Result, ready_s: float, memory_mib: float) -> dict[str, Any]:
    """What `placewise bench --json` prints. Times in milliseconds; rps over the concurrent rounds."""
    p50, p99 = np.percentile(result.service_ms, (50, 99))
    echo_p50, echo_p99 = np.percentile(result.echo_ms, (50, 99))
    rps = result.service_calls / result.service_s
    echo_rps = result.echo_calls / result.echo_s
    return {
        "rpc": plan.rpc,
        "policy": plan.workload.policy,
        "nodes": plan.workload.nodes,
        "jobs": plan.workload.jobs,
        "tasks": plan.workload.tasks,
        "p50_ms": float(p50),
        "p99_ms": float(p99),
        "rps": rps,
        "echo_p50_ms": float(echo_p50),
        "echo_p99_ms": float(echo_p99),
        "echo_rps": echo_rps,
        "p50_ratio": float(p50 / echo_p50),
        "p99_over_p50": float(p99 / p50),
        "rps_ratio": rps / echo_rps,
        "decide_p50_ms": float(np.percentile(result.decide_ms, 50)),
        "calls": len(result.service_ms) + result.service_calls,
        "errors": result.errors,
        "concurrency": plan.concurrency,
        "replicas": len(plan.services),
        "ready_s": ready_s,
        "memory_mib": memory_mib,
    }
