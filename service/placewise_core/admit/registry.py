"""Every admission policy by name. A new policy is one more line here."""

from placewise_core.admit.policies.capacity import Capacity
from placewise_core.admit.policies.fifo import Fifo, FifoStrict
from placewise_core.admit.policies.min_min import MinMin
from placewise_core.admit.policies.proteus import Proteus
from placewise_core.admit.policies.proteus_paper import ProteusPaper
from placewise_core.admit.policies.proteus_qos import ProteusQos, ProteusQosSavable
from placewise_core.admit.policies.qos import QosAware
from placewise_core.admit.policies.qos_paper import QosPaper
from placewise_core.admit.policies.qos_savable import QosSavable
from placewise_core.admit.policies.random_gpus import RandomGpus
from placewise_core.admit.policies.single_gpu import SingleGpu
from placewise_core.admit.policies.tetris import TetrisCer, TetrisPerf
from placewise_core.admit.policies.weighted_fair import WeightedFair
from placewise_core.admit.policy import AdmissionPolicy
from placewise_core.speed.throughput import ThroughputModel

_POLICIES = (
    Proteus,
    QosAware,
    QosSavable,
    ProteusQos,
    ProteusQosSavable,
    Fifo,
    FifoStrict,
    Capacity,
    MinMin,
    WeightedFair,
    TetrisPerf,
    TetrisCer,
    SingleGpu,
    RandomGpus,
    QosPaper,
    ProteusPaper,
)

# Policies whose order is another than that of 0.1.0, with the name of the order they had.
CHANGED_ORDERS = {
    "fifo": "fifo lets jobs pass one that does not fit: fifo-strict is the order it had",
    "proteus": "proteus starts all that fits and lets jobs pass one that does not: proteus-paper is the order it had",
}


def admission_policies(throughput: ThroughputModel) -> dict[str, AdmissionPolicy]:
    """One instance of each, by name, all with the same throughput model."""
    policies = [policy(throughput) for policy in _POLICIES]
    return {policy.name: policy for policy in policies}


def passes_in_order(name: str) -> bool:
    """True if a host may ask this policy by turns (admit/turns.py)."""
    return any(policy.name == name and policy.passes_in_order for policy in _POLICIES)
