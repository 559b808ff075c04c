"""Nodes as the simulator knows them: the core's inventory plus what contention and heat need. Builders per setting."""

from collections.abc import Sequence
from dataclasses import dataclass

from placewise_core.domain.cluster import Gpu, Hardware, Node
from placewise_core.domain.job import NodeId, Resources
from placewise_training.sim.thermal import ThermalSpec


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One node. Bandwidths in bytes per second; `pcie_bps` and `disk_bps` are shared by everything on the node.

    `interconnect_bps` is the bandwidth of one GPU to its peers in the node, each way. 0: gradients cross PCIe together
    with the input, as in the truths of every figure before the two were parted.
    """

    node: Node
    gpu_model: str = "V100"
    disk_bps: float = 5.0e8  # one SATA SSD
    pcie_bps: float = 1.2e10  # PCIe 3.0 × 16, as measured host to device
    interconnect_bps: float = 0.0
    nic_bps: float = 6.25e9
    cpu_speed: float = 1.0  # of one core, relative to the reference of the measurements
    thermal: ThermalSpec = ThermalSpec()

    @property
    def id(self) -> str:
        return self.node.id


def make_node(
    name: str,
    *,
    cpu_cores: float,
    gpus: int,
    memory_gib: float,
    network_gbps: float,
    gpu_model: str = "V100",
    gpu_memory_gib: float = 16.0,
    rack: str = "",
    max_jobs_per_gpu: int = 1,
    cpu_ghz: float = 0.0,
    gpu_ghz: float = 0.0,
    cache_mib: float = 0.0,
    cpu_speed: float = 1.0,
    disk_bps: float = 5.0e8,
    thermal: ThermalSpec | None = None,
    interconnect_bps: float = 0.0,
    pcie_bps: float = 1.2e10,
    is_reported: bool = True,
) -> NodeSpec:
    """A node with `gpus` equal GPUs. `is_reported`: its inventory has the bandwidth between them."""
    node = Node(
        id=NodeId(name),
        capacity=Resources(
            cpu_cores=cpu_cores,
            gpus=gpus,
            memory_gib=memory_gib,
            gpu_memory_gib=gpus * gpu_memory_gib,
            network_gbps=network_gbps,
        ),
        gpus=tuple(Gpu(index=g, model=gpu_model, memory_gib=gpu_memory_gib) for g in range(gpus)),
        max_jobs_per_gpu=max_jobs_per_gpu,
        rack=rack,
        hardware=Hardware(cpu_ghz, cache_mib, gpu_ghz, interconnect_bps / 1.25e8 if is_reported else 0.0),
    )
    return NodeSpec(
        node=node,
        gpu_model=gpu_model,
        nic_bps=network_gbps * 1.25e8,
        cpu_speed=cpu_speed,
        disk_bps=disk_bps,
        pcie_bps=pcie_bps,
        interconnect_bps=interconnect_bps,
        thermal=thermal or ThermalSpec(),
    )


def uniform_cluster(nodes: int, gpus_per_node: int, gpu_model: str = "V100", **overrides: float) -> list[NodeSpec]:
    """`nodes` equal nodes: 8 cores, 64 GiB for each GPU, 50 Gbit/s, unless overridden."""
    settings = {
        "cpu_cores": 8.0 * max(1, gpus_per_node),
        "memory_gib": 64.0 * max(1, gpus_per_node),
        "network_gbps": 50.0,
        **overrides,
    }
    return [
        make_node(
            f"node{i:04d}",
            gpus=gpus_per_node,
            gpu_model=gpu_model,
            rack=f"rack{i // 20}",
            cpu_cores=settings["cpu_cores"],
            memory_gib=settings["memory_gib"],
            network_gbps=settings["network_gbps"],
        )
        for i in range(nodes)
    ]


def harmony_cluster(nodes: int = 6) -> list[NodeSpec]:
    """Harmony's servers: 8 cores, 2 × GTX 1080 Ti, 48 GB, 50 GbE, one SSD (section VII-B)."""
    return [
        make_node(
            f"server{i}",
            cpu_cores=8,
            gpus=2,
            memory_gib=48,
            network_gbps=50,
            gpu_model="1080TI",
            gpu_memory_gib=11,
        )
        for i in range(nodes)
    ]


def qos_cluster() -> list[NodeSpec]:
    """The QoS paper's platform: 4 nodes × 4 GPUs."""
    return uniform_cluster(4, 4, "2080TI")


_LDWP_KINDS: Sequence[tuple[int, int, float, float, int, str]] = (
    # (how many, CPUs, memory GiB, GPU memory GiB, GPUs, model): Table 4, the manager taken from the second kind.
    (2, 2, 32, 24, 2, "K80"),
    (3, 2, 32, 8, 4, "P4"),
    (4, 2, 16, 24, 4, "K80"),
    (2, 2, 8, 8, 2, "P4"),
)


def ldwp_cluster(nodes: int = 11) -> list[NodeSpec]:
    """The first `nodes` of the eleven workers of the LDWP/IAWP paper, kinds dealt in turn; gigabit Ethernet.

    Table 4 says two CPUs a node and 16 cores to a machine; 8 cores per CPU are counted here.
    """
    kinds = [kind for kind in _LDWP_KINDS for _ in range(kind[0])]
    dealt = [kinds[(i * 4) % len(kinds)] for i in range(len(kinds))]  # 4 and 11 share no factor: each kind once
    return [
        make_node(
            f"worker{i}",
            cpu_cores=8.0 * dealt[i % len(dealt)][1],
            memory_gib=dealt[i % len(dealt)][2],
            gpus=dealt[i % len(dealt)][4],
            gpu_memory_gib=dealt[i % len(dealt)][3] / dealt[i % len(dealt)][4],
            gpu_model=dealt[i % len(dealt)][5],
            network_gbps=1,
            max_jobs_per_gpu=8,
        )
        for i in range(nodes)
    ]


def philly_cluster(nodes: int = 321) -> list[NodeSpec]:
    """Nodes of the size the Philly replays use: 8 GPUs each, 100 Gbit/s InfiniBand."""
    return uniform_cluster(nodes, 8, "P100", network_gbps=100.0)
