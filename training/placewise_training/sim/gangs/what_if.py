"""True speeds of a placement that nobody has taken yet."""

from collections.abc import Sequence

from placewise_core.domain.cluster import Assignment
from placewise_training.sim.gangs.engine import Simulation
from placewise_training.sim.gangs.live import per_gpu, spots_of
from placewise_training.sim.jobs import SimJob


def what_if(simulation: Simulation, job: SimJob, assignments: Sequence[Assignment]) -> dict[str, tuple[float, float]]:
    """True speeds (before, after) in samples per second if the job ran there: its own, before = 0, and its neighbours'.
    Changes nothing."""
    simulation.refresh()
    speed, nodes, footprints = simulation.speed, simulation.nodes, simulation.footprints
    footprint = speed.footprint(job, spots_of(per_gpu(job.job, assignments)), nodes)
    neighbours = dict.fromkeys(other for part in footprint.parts for other in nodes[part.node].parts)
    footprints[job.id] = footprint
    for part in footprint.parts:
        nodes[part.node].add(job.id, part)
    try:
        after = {name: speed.rate(footprints[name], nodes, footprints) for name in (job.id, *neighbours)}
    finally:
        del footprints[job.id]
        for part in footprint.parts:
            nodes[part.node].remove(job.id)
    running = simulation.running
    return {name: (running[name].rate if name in running else 0.0, rate) for name, rate in after.items()}
