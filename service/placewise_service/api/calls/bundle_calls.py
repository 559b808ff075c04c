"""Handlers of the calls about bundles: which one answers, which are on trial."""

from typing import Final

from placewise.v1 import bundle_pb2
from placewise_core.domain import validate
from placewise_core.domain.errors import InvalidRequestError
from placewise_core.policies.trial.arms import Arms, Unit
from placewise_service.api.calls.context import CallContext
from placewise_service.api.convert import convert_out
from placewise_service.api.convert.convert_in import seconds
from placewise_service.api.identity.auth import Principal

_CHANGES_DEFAULT, _MOST_CHANGES = 50, 1000
_PERIOD_S: Final = 3600.0
_WASHOUT_SHARE: Final = 0.1  # of a block
_LEAST_PERIOD_S, _MOST_PERIOD_S = 10.0, 7 * 86_400.0
_UNITS: Final = {
    bundle_pb2.Canary.BY_UNSPECIFIED: Unit.JOB,
    bundle_pb2.Canary.JOB: Unit.JOB,
    bundle_pb2.Canary.TIME: Unit.TIME,
}


async def list_bundles(
    context: CallContext, request: bundle_pb2.ListBundlesRequest, principal: Principal, deadline_s: float
) -> bundle_pb2.ListBundlesResponse:
    bundles = context.engine.bundles
    found = await bundles.list()
    return bundle_pb2.ListBundlesResponse(
        bundles=[convert_out.bundle(status) for status in found],
        shadows=[
            bundle_pb2.Shadow(cluster=c, bundle=each.bundle, policy=each.policy) for c, each in bundles.shadows.items()
        ],
        own_bundles=[
            bundle_pb2.OwnBundle(cluster=cluster, bundle=own.bundle) for cluster, own in sorted(bundles.actives.items())
        ],
        canaries=[convert_out.canary(cluster, each) for cluster, each in sorted(bundles.canaries.items())],
        kill_switches=[
            bundle_pb2.KillSwitch(cluster=cluster, policy=policy) for cluster, policy in sorted(bundles.kills.items())
        ],
    )


async def _check_known(context: CallContext, cluster: str) -> None:
    """Raises InvalidRequestError, NotFoundError unless the cluster exists or is ""."""
    if cluster:
        validate.check_cluster(cluster)
        await context.engine.get_cluster(cluster)


async def activate_bundle(
    context: CallContext, request: bundle_pb2.ActivateBundleRequest, principal: Principal, deadline_s: float
) -> bundle_pb2.ActivateBundleResponse:
    validate.check_bundle_name(request.name, may_be_empty=bool(request.cluster))
    await _check_known(context, request.cluster)
    status = await context.engine.bundles.activate(request.name, request.cluster, principal.name)
    return bundle_pb2.ActivateBundleResponse(bundle=convert_out.bundle(status))


async def rollback_bundle(
    context: CallContext, request: bundle_pb2.RollbackBundleRequest, principal: Principal, deadline_s: float
) -> bundle_pb2.RollbackBundleResponse:
    await _check_known(context, request.cluster)
    status = await context.engine.bundles.rollback(request.cluster, principal.name)
    return bundle_pb2.RollbackBundleResponse(bundle=convert_out.bundle(status))


async def set_shadow(
    context: CallContext, request: bundle_pb2.SetShadowRequest, principal: Principal, deadline_s: float
) -> bundle_pb2.SetShadowResponse:
    validate.check_bundle_name(request.name, may_be_empty=True)
    validate.check_policy_name(request.policy)
    await _check_known(context, request.cluster)
    status = await context.engine.bundles.set_shadow(request.name, request.cluster, request.policy, principal.name)
    if status is None:
        return bundle_pb2.SetShadowResponse()
    return bundle_pb2.SetShadowResponse(bundle=convert_out.bundle(status))


async def set_canary(
    context: CallContext, request: bundle_pb2.SetCanaryRequest, principal: Principal, deadline_s: float
) -> bundle_pb2.SetCanaryResponse:
    validate.check_bundle_name(request.name, may_be_empty=True)
    await _check_known(context, request.cluster)
    bundles = context.engine.bundles
    if not request.name:
        await bundles.end_canary(request.cluster, principal.name)
        return bundle_pb2.SetCanaryResponse()
    status, chosen = await bundles.set_canary(request.name, request.cluster, _rule(request), principal.name)
    return bundle_pb2.SetCanaryResponse(
        bundle=convert_out.bundle(status), canary=convert_out.canary(request.cluster, chosen)
    )


def _rule(request: bundle_pb2.SetCanaryRequest) -> Arms:
    """The rule asked for, without its salt. Raises InvalidRequestError."""
    unit = _UNITS.get(request.by)
    if unit is None:
        raise InvalidRequestError("must be JOB or TIME", "by")
    if unit is Unit.JOB:
        if not 0.0 < request.share < 1.0:
            raise InvalidRequestError("must be above 0 and below 1: PromoteBundle lets it answer all jobs", "share")
        for field in ("period", "washout"):
            if request.HasField(field):
                raise InvalidRequestError("must be left out unless by is TIME", field)
        return Arms("", request.share)
    if request.share not in (0.0, 0.5):
        raise InvalidRequestError("must be a half, or left out: by time both arms have equal blocks", "share")
    period_s = seconds(request.period) if request.HasField("period") else _PERIOD_S
    if not _LEAST_PERIOD_S <= period_s <= _MOST_PERIOD_S:
        raise InvalidRequestError(f"must be {_LEAST_PERIOD_S:g} to {_MOST_PERIOD_S:g} seconds", "period")
    washout_s = seconds(request.washout) if request.HasField("washout") else _WASHOUT_SHARE * period_s / 2
    if not 0.0 <= washout_s < period_s / 2:
        raise InvalidRequestError("must be shorter than a block, which is half of the period", "washout")
    return Arms("", 0.5, unit, period_s, washout_s)


async def promote_bundle(
    context: CallContext, request: bundle_pb2.PromoteBundleRequest, principal: Principal, deadline_s: float
) -> bundle_pb2.PromoteBundleResponse:
    validate.check_bundle_name(request.name, may_be_empty=True)
    await _check_known(context, request.cluster)
    status = await context.engine.bundles.promote(
        request.cluster, request.name, principal.name, allow_ungated=request.allow_ungated
    )
    return bundle_pb2.PromoteBundleResponse(bundle=convert_out.bundle(status))


async def set_kill_switch(
    context: CallContext, request: bundle_pb2.SetKillSwitchRequest, principal: Principal, deadline_s: float
) -> bundle_pb2.SetKillSwitchResponse:
    validate.check_policy_name(request.policy)
    await _check_known(context, request.cluster)
    await context.engine.bundles.set_kill_switch(request.policy, request.cluster, principal.name)
    return bundle_pb2.SetKillSwitchResponse()


async def list_bundle_history(
    context: CallContext, request: bundle_pb2.ListBundleHistoryRequest, principal: Principal, deadline_s: float
) -> bundle_pb2.ListBundleHistoryResponse:
    if request.cluster:
        validate.check_cluster(request.cluster)
    if not 0 <= request.page_size <= _MOST_CHANGES:
        raise InvalidRequestError(f"must be 0 to {_MOST_CHANGES}", "page_size")
    found = await context.engine.bundles.history(request.cluster, request.page_size or _CHANGES_DEFAULT)
    return bundle_pb2.ListBundleHistoryResponse(changes=[convert_out.bundle_change(change) for change in found])
