"""Completes the record of a decision with its alternatives and forecasts, once it was answered."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from placewise_core.basics.slices import Slices
from placewise_core.gang.context import PlaceContext
from placewise_core.inputs.reward import PartTokens
from placewise_core.policies.explorers.harmony_draw import retraced
from placewise_core.policies.studies.alternatives import Alternative, Study, studied
from placewise_log.record import DecisionRecord, Parts, Steps, Tensor
from placewise_service.declog.sink import DecisionSink
from placewise_service.engine.shadows import PolicySet


class AlternativesStudy:
    """Of one record, which is logged in any case: without alternatives if there is no time or they fail."""

    def __init__(
        self,
        record: DecisionRecord,
        studies: Sequence[Study],
        policies: PolicySet,
        sink: DecisionSink,
        on_shed: Callable[[], None],
    ) -> None:
        self._record = record
        self._studies = studies
        self._policies = policies
        self._sink = sink
        self._on_shed = on_shed

    @property
    def decision_id(self) -> str:
        return self._record.decision_id

    def study(self, slices: Slices) -> None:
        alternatives: list[Alternative] = []
        parts: list[Parts] = []
        steps: list[Steps] = []
        for study in self._studies:
            context = study.context(slices)
            result = studied(study, self._policies.placement, self._policies.learned.search, context)
            alternatives.extend(result.alternatives)
            if result.tokens is not None:
                parts.append(_parts(study, result.tokens))
            if (found := self._steps(study, context)) is not None:
                steps.append(found)
        self._record = replace(self._record, alternatives=tuple(alternatives), steps=tuple(steps), parts=tuple(parts))

    def finish(self) -> None:
        self._sink.offer(self._record)

    def shed(self) -> None:
        self._on_shed()
        self._sink.offer(self._record)

    def _steps(self, study: Study, context: PlaceContext) -> Steps | None:
        harmony = self._policies.learned.harmony
        if harmony is None or study.drawn is None:
            return None
        found = retraced(harmony, study.drawn.proposal, study.job, study.view, context)
        if found is None:
            return None
        nodes = tuple(study.view.nodes.records[m].id for m in found.rows.tolist())
        return Steps(study.job.id, found.tasks, found.odds, nodes, Tensor.pack(found.tokens))


def _parts(study: Study, tokens: PartTokens) -> Parts:
    return Parts(
        study.job.id,
        Tensor.pack(tokens.parts),
        Tensor.pack(tokens.job.astype(np.int32)),
        Tensor.pack(tokens.node.astype(np.int32)),
        tuple(study.view.nodes.records[m].id for m in tokens.places),
        tuple(running.id for running in tokens.neighbours),
    )
