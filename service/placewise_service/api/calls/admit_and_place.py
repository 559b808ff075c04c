"""AdmitOrWait that places admitted jobs in the same call: derives the request to Place. Decides nothing."""

from dataclasses import replace

from placewise.v1 import decision_pb2
from placewise_core.domain.commands import AdmitCommand, PlaceCommand, Scope
from placewise_core.domain.decision import AdmitPlan, Verdict
from placewise_core.domain.errors import InvalidRequestError
from placewise_core.domain.job import Shape
from placewise_service.api.convert import convert_in


def place_command(request: decision_pb2.PlaceRequest, admit: AdmitCommand) -> PlaceCommand:
    """The question without its jobs, which `of_admitted` adds.

    Raises InvalidRequestError for fields that the outer request sets already, and for a scope unknown to admission.
    """
    command = convert_in.place_command(request, admit.caller, admit.fingerprint)
    if command.jobs:
        raise InvalidRequestError("must be empty: set jobs in the outer request", "place.jobs")
    if command.cluster not in ("", admit.cluster):
        raise InvalidRequestError(f"must be empty or {admit.cluster!r}", "place.cluster")
    if command.now_s is not None:
        raise InvalidRequestError("must be empty: set now in the outer request", "place.now")
    if command.scope is Scope.NODE:
        raise InvalidRequestError("must be CLUSTER: admission has no NODE scope", "place.scope")
    return command


def of_admitted(command: PlaceCommand, admit: AdmitCommand, plan: AdmitPlan) -> PlaceCommand:
    """`command` about the admitted jobs, in the order of their rank, elastic ones in the shape they were given."""
    admitted = [pair for pair in zip(admit.jobs, plan.admissions, strict=True) if pair[1].verdict is Verdict.ADMIT]
    jobs = []
    if len(admitted) > 1:
        admitted.sort(key=lambda pair: pair[1].rank)
    for job, admission in admitted:
        is_shaped = not job.is_rigid and admission.nodes > 0
        jobs.append(replace(job, shape=Shape(admission.nodes, admission.gpus_per_node)) if is_shaped else job)
    return PlaceCommand(  # not `replace`, which takes five times as long
        cluster=admit.cluster,
        jobs=tuple(jobs),
        request_id=command.request_id,
        policy=command.policy,
        is_dry_run=command.is_dry_run or admit.is_dry_run,
        is_explaining=command.is_explaining,
        reserve_ttl_s=command.reserve_ttl_s,
        seed=command.seed,
        caller=command.caller,
        fingerprint=command.fingerprint,
        now_s=admit.now_s,
    )
