"""The table of docs/callers.md: the abilities of each adapter in words, and the tests that show them.

A test is named by its module below tests/ and its name; with parameters ("test_x[own") only those cases count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SLURM, EXTENDER, OWN, GATES, VOLCANO, YARN = WAYS = (
    "Slurm",
    "Kubernetes, extender",
    "Kubernetes, own name",
    "Kubernetes, gates",
    "Volcano",
    "YARN",
)


@dataclass(frozen=True, slots=True)
class Cell:
    """`tests` show what `words` say. Without tests the adapter does not do it; the words say what happens instead."""

    words: str
    tests: tuple[str, ...] = ()


def _cell(words: str, *tests: str) -> Cell:
    return Cell(words, tests)


_SLURM = "e2e.slurm.test_slurm_e2e."
_RULES = "e2e.slurm.test_slurm_rules."
_SLURM_FAULTS = "e2e.slurm.test_slurm_faults."
_MODES = "e2e.kubernetes.test_kubernetes_modes."
_DECIDED = "e2e.kubernetes.test_kubernetes_decided."
_LATENCY = "e2e.kubernetes.test_kubernetes_latency."
_GATES = "e2e.kubernetes.gates.test_kubernetes_gates."
_ON_SLURM = "contract.adapters.test_slurm_adapter.TestSlurm2605."
_VOLCANO = "contract.adapters.test_volcano_conformance.TestVolcano."
_PAYLOADS = "contract.adapters.test_volcano_extender."
_GROUPS = "contract.adapters.test_volcano_groups."
_ON_VOLCANO = "e2e.volcano.test_volcano_groups."
_VOLCANO_DECIDED = "e2e.volcano.test_volcano_decided.test_mixed_gangs_run_as_decided"
_VOLCANO_FAULTS = "e2e.volcano.test_volcano_faults.test_nothing_is_lost_or_doubled"
_YARN = "e2e.yarn.test_yarn_e2e."
_YARN_LIMITS = "e2e.yarn.test_yarn_limits."
_YARN_FAULTS = "e2e.yarn.test_yarn_faults."

_WAITS = "test_a_gang_that_must_wait_waits_and_starts_when_it_is_admitted"
_KEPT = "test_restart_between_decision_and_start_keeps_the_decision"
_EVERY_GANG = f"{_SLURM}test_every_gang_runs_where_the_service_said"
_MIXED = f"{_YARN}test_mixed_gangs_run_as_decided_under_contention"
_TYPED = f"{_SLURM}test_typed_gpus_shares_and_foreign_jobs"
_TURNING = f"{_MODES}test_a_waiting_gang_says_why_and_is_bound_within_a_second_of_turning"
_BOUND = f"{_MODES}test_every_gang_pod_is_bound_exactly_as_decided"
_ROLES = f"{_DECIDED}test_mixed_gangs_run_as_decided"
_GATED = f"{_GATES}test_gangs_are_bound_where_they_were_decided"
_OPEN = f"{_MODES}test_without_the_service_gangs_are_bound_all_the_same"
_DIES = f"{_MODES}test_nothing_is_lost_or_given_twice_when_a_part_dies_in_a_burst"
_DIED = [f"{service}-{part}" for service in ("oracle", "placewise") for part in ("service", "adapter")]
_CLAIMED = "e2e.kubernetes.devices.test_kubernetes_devices.test_gangs_with_claims_run_as_decided"
_CLAIMED += "_on_the_devices_that_are_reported"
_HIT = "e2e.kubernetes.faults.test_kubernetes_fault_"
_HIT_NODES_AND_JOBS = (
    "nodes.test_no_gang_is_lost_with_a_node",
    "jobs.test_nothing_is_held_for_what_a_job_gave_up",
)
_SCALE = "bench.test_kubernetes_scale.test_the_cost_grows_linearly"
_TAKEN_UP = f"{_MODES}test_a_killed_adapter_takes_up_what_it_had_decided"


def _hits_of(way: str) -> tuple[str, ...]:
    """Of the parts, nodes and jobs that are hit, and of the gangs on 8 and 200 nodes."""
    sizes = (f"{_HIT}gangs.test_sixty_mixed_gangs[{nodes}-{way}" for nodes in (8, 200))
    hit = ("parts.test_nothing_is_lost_or_doubled", *_HIT_NODES_AND_JOBS)
    return (*(f"{_HIT}{test}[{way}" for test in hit), *sizes)


SUITES: Mapping[str, str] = {
    SLURM: "slurm",
    EXTENDER: "kubernetes",
    OWN: "kubernetes",
    GATES: "kubernetes",
    VOLCANO: "volcano",
    YARN: "yarn",
}
"""How the names of the suites begin that run a real scheduler."""
FIGURES_OF: Mapping[str, tuple[str, ...]] = {
    SLURM: ("e2e.slurm.", "bench.test_slurm_scale."),
    EXTENDER: (
        f"{_ROLES}[extender",
        f"{_DECIDED}test_a_dry_run_agrees_seldom",
        _LATENCY,
        *(f"{_DIES}[{case}-extender" for case in _DIED),
        *_hits_of("extender"),
        f"{_CLAIMED}[extender",
        f"{_SCALE}[own",  # nothing is bound there, and else the two do the same
    ),
    OWN: (
        f"{_ROLES}[own",
        _LATENCY,
        f"{_SCALE}[own",
        *(f"{_DIES}[{case}-own" for case in _DIED),
        *_hits_of("own"),
    ),
    GATES: ("e2e.kubernetes.gates.", f"{_SCALE}[gates", *_hits_of("gates"), f"{_CLAIMED}[gates"),
    VOLCANO: ("e2e.volcano.",),
    YARN: ("e2e.yarn.", "bench.test_yarn_scale."),
}
"""How the names of the tests begin whose figures are of an adapter."""

FEATURES: Mapping[str, Mapping[str, Cell]] = {
    "when": {
        SLURM: _cell("held by the submit hook, released by an update", _EVERY_GANG),
        EXTENDER: _cell("no node is offered while it waits; an annotation wakes its pods", f"{_TURNING}[extender"),
        OWN: _cell("bound once it is admitted", f"{_TURNING}[own"),
        GATES: _cell("its gate goes once it is admitted", _GATED),
        VOLCANO: _cell("jobEnqueueable answers no while it waits", f"{_VOLCANO}{_WAITS}", _VOLCANO_DECIDED),
        YARN: _cell("no node may take its containers while it waits", _MIXED),
    },
    "where": {
        SLURM: _cell("node list of the same update", _EVERY_GANG),
        EXTENDER: _cell("filter leaves the decided node alone", f"{_BOUND}[placewise-extender"),
        OWN: _cell("the adapter's own Bindings", f"{_BOUND}[placewise-own"),
        GATES: _cell("the decided node is nominated, and pinned soft or hard", _GATED),
        VOLCANO: _cell("the decided node is nominated, and scored; elsewhere if it is full", _VOLCANO_DECIDED),
        YARN: _cell("only a decided node may take the container", _MIXED),
    },
    "how": {
        SLURM: _cell("a daemon beside slurmctld, by slurmrestd and hooks", _EVERY_GANG),
        EXTENDER: _cell("a deployment, in kube-scheduler's configuration", f"{_BOUND}[placewise-extender"),
        OWN: _cell("a deployment; `schedulerName: placewise`", f"{_BOUND}[placewise-own"),
        GATES: _cell(
            "a deployment and two admission policies; any scheduler",
            f"{_GATES}test_the_policy_gates_labelled_pods_and_neither_the_system_s_nor_daemons",
        ),
        VOLCANO: _cell("a deployment, in Volcano's extender plugin", _VOLCANO_DECIDED),
        YARN: _cell("a jar in the ResourceManager", _MIXED),
    },
    "gangs": {
        SLURM: _cell("a job's nodes, by one update", _EVERY_GANG),
        EXTENDER: _cell("decided whole; bound pod by pod by the scheduler", f"{_BOUND}[placewise-extender"),
        OWN: _cell("decided and bound whole", f"{_MODES}test_no_gang_is_bound_in_part_where_not_all_fit[placewise-own"),
        GATES: _cell(
            "decided whole; bound pod by pod by the scheduler",
            f"{_GATES}test_a_gang_that_does_not_fit_is_held_whole_and_says_why",
        ),
        VOLCANO: _cell("Volcano's own, decided whole", _VOLCANO_DECIDED),
        YARN: _cell("the asks of one call, decided whole", _MIXED),
    },
    "unequal roles": {
        SLURM: _cell(
            "no: heterogeneous jobs stay Slurm's, and count",
            f"{_RULES}test_arrays_heterogeneous_jobs_and_parts_of_gpus_stay_slurms_and_are_counted",
        ),
        EXTENDER: _cell("by annotation or group", f"{_ROLES}[extender"),
        OWN: _cell("by annotation or group", f"{_ROLES}[own"),
        GATES: _cell(
            "by annotation or group",
            "e2e.kubernetes.gates.test_kubernetes_gates_decided.test_mixed_gangs_run_as_decided",
        ),
        VOLCANO: _cell(
            "as the vcjob's tasks have them; without one, the group's sum is cut among them",
            f"{_ON_VOLCANO}test_unequal_roles_run_as_decided",
            f"{_GROUPS}test_unequal_roles_are_asked_for_as_the_vcjob_has_them",
        ),
        YARN: _cell("asks of different sizes", _MIXED),
    },
    "GPU indices": {
        SLURM: _cell("exact if each GPU has a type of its own", _TYPED),
        EXTENDER: _cell("no: the device plugin or the claim picks; a claim's are reported", f"{_CLAIMED}[extender"),
        OWN: _cell("no: the device plugin picks; noted on the pod"),
        GATES: _cell("no: the device plugin or the claim picks; a claim's are reported", f"{_CLAIMED}[gates"),
        VOLCANO: _cell("no: the device plugin picks; noted on the pod"),
        YARN: _cell("no: YARN picks"),
    },
    "shares": {
        SLURM: _cell("TaskProlog; their times are reported", _TYPED),
        EXTENDER: _cell("no"),
        OWN: _cell("no"),
        GATES: _cell(
            "annotations of the patch that takes the gate, for the downward API",
            "e2e.kubernetes.devices.test_kubernetes_devices.test_the_pods_of_a_divisible_task_have_their_shares_and_indices",
        ),
        VOLCANO: _cell("no"),
        YARN: _cell(
            "in its containers' tokens; ShareListener on the nodes sets the environment",
            "e2e.yarn.test_yarn_shares.test_a_listener_on_the_nodes_hands_out_shares",
        ),
    },
    "elastic": {
        SLURM: _cell("node ranges (`-N1-4`)", _EVERY_GANG, f"{_ON_SLURM}test_an_elastic_job_stays_in_its_node_range"),
        EXTENDER: _cell("no"),
        OWN: _cell("no"),
        GATES: _cell("no"),
        VOLCANO: _cell(
            "no: the pods that start together are decided together, later ones one by one",
            f"{_ON_VOLCANO}test_of_an_elastic_vcjob_what_starts_together_is_decided_together",
        ),
        YARN: _cell(
            "`placewise.min-gpus`: a gang of one-GPU containers may start with fewer",
            f"{_YARN_LIMITS}test_a_gang_with_a_range_starts_on_the_idle_gpus",
        ),
    },
    "topology": {
        SLURM: _cell("partitions and features (`a&b`)", f"{_SLURM}test_jobs_go_where_slurm_lets_them"),
        EXTENDER: _cell(
            "node selectors; other rules stay kube-scheduler's",
            "contract.adapters.test_kubernetes_extender.test_a_decided_node_that_is_not_offered_is_never_named",
        ),
        OWN: _cell("no, but for node selectors"),
        GATES: _cell(
            "node selectors, required affinity, taints, volumes; other rules stay the scheduler's",
            f"{_GATES}test_a_decision_obeys_the_rules_of_the_pod",
            f"{_GATES}test_rules_that_are_not_evaluated_are_left_to_the_scheduler_and_counted",
        ),
        VOLCANO: _cell(
            "HyperNodes are racks; a gang of hard topology stays within one",
            f"{_ON_VOLCANO}test_a_gang_of_hard_topology_is_decided_within_a_hyper_node",
        ),
        YARN: _cell("node labels", f"{_YARN_LIMITS}test_two_partitions_are_decided_apart"),
    },
    "quotas": {
        SLURM: _cell(
            "nothing is reserved for a job that a limit keeps waiting",
            f"{_RULES}test_nothing_is_reserved_for_a_job_beyond_a_limit_of_its_qos",
            f"{_RULES}test_nothing_is_reserved_for_a_job_that_a_partition_or_a_reservation_keeps_waiting",
        ),
        EXTENDER: _cell(
            "a gang whose pods a quota forbids holds nothing after 30 s",
            "contract.adapters.test_kubernetes_jobs.test_what_is_held_for_pods_that_do_not_come_is_held_once",
        ),
        OWN: _cell(
            "a gang whose pods a quota forbids holds nothing after 30 s",
            "contract.adapters.test_kubernetes_early.test_the_rest_that_never_comes_is_given_up_and_what_runs_is_told",
        ),
        GATES: _cell("no: a gang is decided once its pods are there"),
        VOLCANO: _cell(
            "nothing is reserved beyond the quotas of its queue and those above it, nor of the guarantees of others",
            f"{_ON_VOLCANO}test_nothing_is_reserved_beyond_the_quota_of_a_queue",
            f"{_ON_VOLCANO}test_nothing_is_reserved_beyond_the_quota_of_the_queue_above",
            f"{_ON_VOLCANO}test_nothing_is_reserved_of_what_another_queue_is_guaranteed",
        ),
        YARN: _cell(
            "nothing is reserved beyond a queue's maximum or a user's limit",
            f"{_YARN_LIMITS}test_a_queue_at_its_maximum_and_a_user_at_the_limit_hold_up_nobody_else",
        ),
    },
    "restart": {
        SLURM: _cell(
            "goes on from Slurm and the service",
            f"{_SLURM_FAULTS}test_the_bridge_killed_between_decision_and_update",
            f"{_ON_SLURM}{_KEPT}",
        ),
        EXTENDER: _cell("goes on from the API and the service", f"{_TAKEN_UP}[placewise-extender"),
        OWN: _cell("goes on from the API and the service", f"{_TAKEN_UP}[placewise-own"),
        GATES: _cell(
            "goes on from the API and the service",
            f"{_GATES}test_an_adapter_killed_between_its_writes_finishes_the_gang",
        ),
        VOLCANO: _cell(
            "goes on from the API and the service",
            f"{_VOLCANO}{_KEPT}",
            f"{_ON_VOLCANO}test_a_restart_reports_no_gang_twice",
        ),
        YARN: _cell(
            "gangs that run are taken over, open asks decided again",
            f"{_YARN_FAULTS}test_the_resource_manager_killed_between_decision_and_allocation",
        ),
    },
    "fail mode": {
        SLURM: _cell("open: left to Slurm after 10 s", f"{_SLURM}test_service_killed_midway"),
        EXTENDER: _cell("open, after 100 ms", f"{_OPEN}[placewise-extender"),
        OWN: _cell("open, after 100 ms; closed without the adapter", f"{_OPEN}[placewise-own"),
        GATES: _cell(
            "closed: pods stay gated; `placewise-kubernetes release` frees them",
            f"{_GATES}test_without_the_service_gangs_stay_gated",
            f"{_GATES}test_release_takes_the_gates_of_one_job_or_of_all",
        ),
        VOLCANO: _cell(
            "open: it abstains",
            f"{_PAYLOADS}test_without_the_service_volcano_decides_alone",
            f"{_VOLCANO_FAULTS}[service killed",
        ),
        YARN: _cell(
            "open: after 100 ms, a held gang after 10 s",
            f"{_YARN}test_gangs_go_on_when_the_service_does_not",
            f"{_YARN_FAULTS}test_service_that_hangs_three_times_releases_no_held_gang",
        ),
    },
}
