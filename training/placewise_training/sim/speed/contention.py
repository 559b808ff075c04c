"""Server contention: how stages stretch when jobs on one node want more CPU, disk, PCIe or NIC than there is.

Sources: demand per iteration from Synergy's CPU sensitivities (train) or Muri's stage times (judge), see profiles.py.
Rule: fluid sharing. CPU: every job gets its request, the rest goes by unmet demand (as cgroup weights do);
disk, PCIe and NIC stretch by total demand over capacity. Demands are those at the speed each job has alone: nobody has
published a measurement that would show more. Cache and memory bandwidth are not modelled.
"""

from placewise_training.sim.speed.base import NodeLoad, Part


def cpu_granted(load: NodeLoad, part: Part) -> float:
    """Cores one job can use on a node, given the demands of the others there."""
    cores = load.spec.node.capacity.cpu_cores
    if load.cpu_wanted <= cores:
        return cores - (load.cpu_wanted - part.cpu_wanted)
    guaranteed = min(part.cpu_requested, part.cpu_wanted)
    unmet = load.cpu_wanted - load.cpu_requested
    spare = max(0.0, cores - load.cpu_requested)
    return guaranteed + (spare * (part.cpu_wanted - guaranteed) / unmet if unmet > 0 else 0.0)


def input_s(load: NodeLoad, part: Part, alone_step_s: float) -> float:
    """Seconds of the input stage beside the node's other jobs. CPU, disk and PCIe overlap, so the slowest counts."""
    cpu_s = 0.0
    if part.cpu_wanted > 0:
        cpu_s = part.cpu_wanted * alone_step_s / max(1e-3, cpu_granted(load, part))
    disk_s = part.input_disk_s * max(1.0, load.disk_rate / load.spec.disk_bps)
    pcie_s = part.input_pcie_s * max(1.0, load.pcie_rate / load.spec.pcie_bps)
    return max(cpu_s, disk_s, pcie_s)


def network_s(load: NodeLoad, part: Part, burst: float = 0.0) -> float:
    """The synchronisation stage beside the node's other jobs. Links between GPUs belong to one job alone.

    Demand over capacity is a rate over whole iterations, but jobs send in bursts at the rate of the line. `burst` says
    how much longer the stage becomes where bursts of others fall into it: with the others sending for a share u of the
    time it takes 1 + burst · u times as long (1: two senders halve the line while they meet, at random).
    """
    capacity = load.spec.nic_bps
    stretch = max(1.0, load.nic_rate / capacity)
    if burst > 0:
        others = max(0.0, load.nic_rate - part.nic_rate) / capacity
        stretch = max(stretch, 1.0 + burst * min(1.0, others))
    return part.net_s * stretch + part.peer_s
