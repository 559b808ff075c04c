"""One gang: its pods, its decision, the task of each pod. Never talks to anybody.

A gang is decided once; each pod is handed one of its tasks, and the same one again however often it asks.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from placewise.v1.cluster_pb2 import Assignment
from placewise.v1.job_pb2 import Job
from placewise_client.adapter.native import NativeJob, Placement, Stage
from placewise_kubernetes.gang.gpus import are_exact, beside
from placewise_kubernetes.gang.spec import (
    GangRef,
    GangRules,
    GroupFacts,
    Source,
    build_job,
    count_roles,
    declared_roles,
    end_of,
    first_of_roles,
    group_settings,
    id_notes,
    proto_role,
    role_of,
    tasks_by_role,
    widest,
)
from placewise_kubernetes.kube import names
from placewise_kubernetes.kube.bind import decision_notes
from placewise_kubernetes.kube.objects import Pod
from placewise_kubernetes.kube.quantity import add_amounts
from placewise_kubernetes.kube.topology import Within

# Raised by building a job from pods with values that no message can hold.
UNREADABLE = (ValueError, TypeError, LookupError, ArithmeticError, StopIteration)

BY_CLAIM = "only kube-scheduler allocates resource claims: give the pods its schedulerName, with the extender or gates"
# Annotations by the id() of a decision's task.
ShareNotes = Mapping[int, Mapping[str, str]]


@dataclass(slots=True, eq=False)
class Gang:
    """One gang. Only the `mark_…` methods change `stage` and `plan`.

    `group` is the object that gives its size; until it has been read as `facts`, the gang cannot be decided.
    `templates` stand in for pods that do not exist yet: a Volcano PodGroup comes before its pods, and so does a Job.
    `refused` is the last refusal of each pod. `woken` are the pods that were shown to their scheduler again after the
    decision, `being_bound` those whose Binding is under way, `nominated` the node that each pod's scheduler was told to
    try first. `asked` are the requests per role in the question, as far as known; `has_outgrown`: a pod that asks for
    more has come since the decision. `may_decide_early`: a gang that we bind ourselves may be decided once while its
    pods are being made. `reduced_to` are the pods per role after the others were given up, `done` those that had
    succeeded before this gang was made of the rest. `is_by_gate`: its pods wait at our scheduling gate;
    `first_refused_s` is the monotonic time since which no node can take it, `lost_since_s` that of the first look at
    which the gang ran, and had a pod without a place or no pod at all. `is_size_due`: a pod of it has gone, perhaps
    since its `group` has shrunk.
    `is_reported`: the loop knows the gang; `is_start_reported`: also that it runs. `is_unreadable`: its pods make no
    job; its scheduler places it.
    `within`: where Volcano's topology keeps it. `barred`: the rule by which Volcano would not start it in any place.
    `is_counted`: its queue has room for it, or Volcano has let it in. `shares`: of a divisible task.
    """

    ref: GangRef
    key: str
    is_own: bool
    group: GangRef | None = None
    facts: GroupFacts | None = None
    pods: dict[str, Pod] = field(default_factory=dict)
    templates: dict[str, Pod] = field(default_factory=dict)
    plan: Placement | None = None
    tasks: dict[str, list[Assignment]] = field(default_factory=dict)
    held: dict[str, Assignment] = field(default_factory=dict)
    shares: ShareNotes = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    woken: set[str] = field(default_factory=set)
    nominated: dict[str, str] = field(default_factory=dict)
    being_bound: set[str] = field(default_factory=set)
    text: str = ""
    stage: Stage = Stage.WAITING
    may_decide_early: bool = True
    is_size_due: bool = False
    has_outgrown: bool = False
    is_reported: bool = False
    is_start_reported: bool = False
    is_unreadable: bool = False
    is_by_gate: bool = False
    within: Within | None = None
    barred: str = ""
    is_counted: bool = False
    asked: dict[str, Mapping[str, float]] = field(default_factory=dict)
    reduced_to: dict[str, int] | None = None
    done: Mapping[str, int] = field(default_factory=dict)
    job: Job | None = None
    job_roles: tuple[str, ...] = ()
    asked_at_s: float = 0.0
    first_refused_s: float | None = None
    lost_since_s: float | None = None
    answered: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_started_here(self) -> bool:
        """We bind its pods, or take their gates away, instead of answering a scheduler."""
        return self.is_own or self.is_by_gate

    @property
    def is_in_order(self) -> bool:
        """Its pods come one after another: the rest of its reservation is kept while the first ones run.

        Never those of a native PodGroup, which says that they start together.
        """
        if self.ref.source is Source.NATIVE:
            return False
        has_note = any(pod.setting(names.IN_ORDER).lower() == "true" for pod in self.pods.values())
        return has_note or self._facts().is_in_order

    @property
    def is_nominated(self) -> bool:
        """Volcano binds it, and tries the node that a pod's status names before it looks at others."""
        is_surplus = self.ref.source is Source.SINGLE and any(
            names.VOLCANO_GROUP in pod.annotations for pod in self.pods.values()
        )
        return (self.ref.source is Source.VOLCANO or is_surplus) and not self.is_started_here

    @property
    def is_written_to(self) -> bool:
        """Its pods are written to as they come."""
        return self.is_started_here or self.is_nominated

    def live(self) -> list[Pod]:
        """Pods that have or need a node, in the order they were made."""
        return [pod for pod in self.pods.values() if not pod.is_over and not pod.is_deleting]

    def is_left(self) -> bool:
        """Whether a pod of it runs, also one that is leaving, or needs a node."""
        return any(not pod.is_over and (pod.node or not pod.is_deleting) for pod in self.pods.values())

    def waiting(self) -> list[Pod]:
        """Pods that need a node."""
        return [pod for pod in self.pods.values() if pod.is_waiting]

    def to_judge(self) -> list[Pod]:
        """Pods that need a node, and stand-ins for those that will come after them."""
        return [*self.waiting(), *self._later().values()]

    def unjudged(self) -> str:
        """A rule of these that Placewise does not evaluate; empty if there is none."""
        return next((pod.unjudged for pod in self.to_judge() if pod.unjudged), "")

    def roles(self) -> dict[str, int]:
        """Pods per role, as far as is known."""
        if self.reduced_to is not None:
            return self.reduced_to
        return self._declared(list(self.pods.values()) or list(self.templates.values()))

    def size(self) -> int:
        """Pods of the whole gang."""
        return sum(self.roles().values())

    def missing(self) -> str:
        """The reason why the gang cannot be decided yet; empty if it can."""
        if self.facts is None:
            return "size of the gang is being read"
        if self.barred:
            return self.barred
        if not self.live() and not self.templates:
            return "no pod of the gang needs a node"
        if any(pod.is_gated for pod in self.waiting()):
            return "pods have scheduling gates"
        if self.is_own and any(pod.is_by_claim for pod in (*self.waiting(), *self.templates.values())):
            return BY_CLAIM
        if any(pod.is_unclaimed for pod in self.waiting()):
            return "resource claims of the gang do not exist yet"
        if any(pod.is_unread for pod in self.to_judge()):
            return "volumes of the gang are being read"
        counts = count_roles(self.live())
        for role, wanted in self.roles().items():
            have = counts.get(role, 0)
            if self.is_started_here and have < wanted and not (self.may_decide_early or self.is_in_order):
                return f"{have} of {wanted} {role} pods of the gang exist"
            if have == 0 and role not in self.templates and role not in self._later():
                return f"no {role} pod of the gang exists yet"
        return ""

    def is_complete(self) -> bool:
        """Whether every pod of the gang has been made, and nobody else holds one back."""
        counts = count_roles(pod for pod in self.live() if not pod.is_gated)
        return self.facts is not None and all(counts.get(role, 0) >= wanted for role, wanted in self.roles().items())

    def may_bind(self, rules: GangRules) -> bool:
        """Whether pods may be bound by us: all are there, or a place is held for all and controllers make the rest.

        Pods that come one after another are never waited for: the next one may come only when the last one is ready.
        """
        if self.stage is Stage.RUNNING or self.is_complete():
            return True
        if self.is_own and self.ref.source is Source.NATIVE:
            return False  # its PodGroup says so; no kube-scheduler is there to keep it
        is_held = self.plan is not None and not self.has_outgrown
        is_rest_made = rules.is_bound_early and all(pod.owner is not None for pod in self.live())
        return is_held and (self.is_in_order or is_rest_made)

    def is_bound_in_part(self) -> bool:
        """Whether a pod of it has a node, is just being given one, or has lost its gate for one."""
        return bool(self.being_bound) or any(pod.node or pod.admitted_to for pod in self.live())

    def suits(self, pod: Pod) -> bool:
        """Whether a pod that comes after the decision can do with the task that was decided for its role."""
        decided = self.asked.get(role_of(pod)) if self.plan is not None else None
        return decided is None or all(amount <= decided.get(name, 0.0) for name, amount in pod.requests.items())

    def give_up_missing(self) -> None:
        """Gives up the pods that never came: the others are the gang, and later pods are gangs of their own."""
        self.reduced_to = count_roles(self.live())

    def give_up(self, pod: Pod) -> None:
        """Gives up a pod that cannot be started where it was decided, with its task."""
        del self.pods[pod.uid]
        self._give_up_task(self.held.pop(pod.uid, None))

    def give_up_succeeded(self) -> None:
        """Pods in order that have succeeded run no more: nothing is held for them."""
        for uid in [uid for uid in self.held if uid in self.pods and self.pods[uid].phase == "Succeeded"]:
            task = self.held.pop(uid)
            if self._free([task]):
                self._give_up_task(task)

    def turn_away(self, pod: Pod) -> bool:
        """A pod that has no room in this gang is another gang. If it asks for more than a task of its role, it comes in
        place of a pod of this one: nothing is held for that any more. True if something was."""
        free = self._free(self._tasks_for(pod)) if self.is_in_order and not self.suits(pod) else []
        self._give_up_task(free[0] if free else None)
        return bool(free)

    def _give_up_task(self, task: Assignment | None) -> None:
        if self.plan is not None and task is not None:
            left = tuple(other for other in self.plan.assignments if other is not task)
            self.plan = dataclasses.replace(self.plan, assignments=left)
            self.tasks = {
                role: [other for other in of_role if other is not task] for role, of_role in self.tasks.items()
            }

    def has_room_for(self, pod: Pod) -> bool:
        """Whether the pod is one of the gang's own, rather than a surplus pod, which becomes a gang of its own."""
        if pod.uid in self.pods or self.facts is None:
            return True
        if self.plan is not None:
            # A larger one would have the whole gang decided again, of which a part may run for hours already.
            is_of_size = not self.is_in_order or self.suits(pod)
            return is_of_size and bool(self._free(self._tasks_for(pod)))
        if self.stage is Stage.RUNNING:
            return False
        declared = self.reduced_to or self._declared([pod, *self.pods.values()])
        return count_roles(self.live()).get(role_of(pod), 0) < declared.get(role_of(pod), 0)

    def build(self, rules: GangRules) -> Job:
        """The job to ask about; made again only while the gang is undecided."""
        if self.job is None or self.stage in (Stage.WAITING, Stage.RELEASED):
            by_role: dict[str, list[Pod]] = {}
            for pod in self.pods.values():
                by_role.setdefault(role_of(pod), []).append(pod)
            present = {role: self._with_settings(widest(pods)) for role, pods in by_role.items()}
            examples = dict(self._later()) | self.templates | present
            # Requests of a Volcano group's pods are only guessed from its sum, if they are not read from its vcjob.
            is_guessed = self.ref.source is Source.VOLCANO and not self._facts().templates
            known = present if is_guessed else examples
            self.asked = {role: pod.requests for role, pod in known.items()}
            roles = {role: count for role, count in self.roles().items() if role in examples}
            roles = roles or count_roles(examples.values())  # the size names other roles than the pods
            self.job_roles = tuple(roles)
            self.job = build_job(self.key, roles, {role: examples[role] for role in roles}, self._facts(), rules)
            if self.within is not None:
                self.within.constrain(self.job)
        return self.job

    def mark_applied(self, placement: Placement) -> None:
        """Takes a decision. Pods that are bound already take the tasks of their nodes first."""
        self.stage = Stage.APPLIED
        self.plan = placement
        self.has_outgrown = False
        self.first_refused_s = None
        self.woken.clear()
        self.held.clear()
        self.tasks = tasks_by_role(self.job, self.job_roles, placement.assignments) if self.job else {}
        started = [pod for pod in self.live() if pod.node or pod.admitted_to]
        for pod in started:
            self.task_of(pod)
        self._use_up(started)

    def mark_waiting(self) -> None:
        """Drops the decision. The next is made for a complete gang: an incomplete one holds nothing a second time.

        A Job without pods is not decided again before they exist; Volcano makes pods only after its call was permitted.
        """
        if self.stage is Stage.APPLIED:
            self.stage = Stage.WAITING
        self.may_decide_early = self.is_counted = False
        if self.ref.source is not Source.VOLCANO:
            self.templates.clear()
        self.plan = None
        self.shares = {}
        self.tasks = {}
        self.held.clear()

    def mark_released(self) -> None:
        """Its scheduler places it."""
        if self.stage in (Stage.WAITING, Stage.APPLIED):
            self.mark_waiting()
            self.stage = Stage.RELEASED

    def mark_bound(self) -> None:
        """Every pod has a node."""
        if self.stage is not Stage.ENDED:
            self.stage = Stage.RUNNING

    def mark_ended(self) -> None:
        """Every pod is over."""
        self.stage = Stage.ENDED

    def answer_callers(self) -> None:
        """Wakes the calls of a scheduler that wait for `answered`; later ones wait for the next answer."""
        self.answered.set()
        self.answered.clear()

    def reported_stage(self) -> Stage | None:
        """The stage for the loop. A gang that cannot be decided (any more) is RELEASED, None if the loop knows none."""
        if self.stage is Stage.WAITING and self.missing():
            return Stage.RELEASED if self.is_reported else None
        is_start_to_come = self.stage is Stage.RUNNING and not self.is_start_reported
        if is_start_to_come and any(pod.is_unclaimed and not pod.is_over for pod in self.pods.values()):
            return Stage.RELEASED if self.plan is None else Stage.APPLIED  # until it is seen which GPUs it has
        return self.stage

    def task_of(self, pod: Pod) -> Assignment | None:
        """The pod's task, the same at every call; None if the decision has none for it."""
        if pod.uid in self.held:
            return self.held[pod.uid]
        free = self._free(self._tasks_for(pod))
        if node := pod.node or pod.admitted_to:
            free = [task for task in free if task.node == node]
        if not free:
            return None
        self.held[pod.uid] = free[0]
        return free[0]

    def notes(self, task: Assignment) -> dict[str, str]:
        """Annotations for the pod of this task of the decision."""
        notes = decision_notes(task, self.plan.decision_id if self.plan else "")
        return {**notes, **id_notes(self.key), **self.shares.get(id(task), {})}

    def placement(self) -> tuple[Assignment, ...]:
        """The tasks on their real nodes, and those to come as decided, but for GPUs that others of the gang have."""
        placed = {pod.uid: self._real(pod) for pod in self._placed()}
        held = [real for uid, real in placed.items() if self.pods[uid].gpu_indices]
        return (*placed.values(), *beside(self.to_come(), held, self.plan.assignments if self.plan else ()))

    def is_begun(self) -> bool:
        """Whether the first of its pods runs as decided."""
        return self.plan is not None and any(pod.node for pod in self.live())

    def is_over(self) -> bool:
        """Whether none of its pods will run any more. Pods in order that have succeeded may be followed by others."""
        if not all(pod.is_over for pod in self.pods.values()):
            return False
        is_ended = all(pod.is_gone or pod.phase != "Succeeded" for pod in self.pods.values())
        return is_ended or not (self.is_in_order and self.to_come())

    def to_come(self) -> list[Assignment]:
        """Tasks of a running gang that no pod runs yet, or any more: a pod will come for them, or come again."""
        if self.plan is None or self.stage is not Stage.RUNNING:
            return []
        placed = self._placed()
        self._use_up(placed)
        begun = {id(self.held.get(pod.uid)) for pod in placed}
        return [task for task in self.plan.assignments if id(task) not in begun]

    def planned(self) -> Iterator[Assignment]:
        """Tasks whose pod is not bound yet: their resources are held free."""
        yield from self.to_come() if self.is_in_order else ()
        if self.plan is None or self.stage is not Stage.APPLIED:
            return
        bound = {id(self.held.get(pod.uid)) for pod in self.pods.values() if pod.node and not pod.is_ended}
        yield from (task for task in self.plan.assignments if id(task) not in bound)

    def wanted(self) -> dict[str, dict[str, float]]:
        """Requests of the pods without a node, also of those to come, by decided node and resource name."""
        tasks = [(task, pod.requests) for pod in self.waiting() if (task := self.task_of(pod)) is not None]
        tasks += [
            (task, self.asked[role])
            for role, of_role in self.tasks.items()
            for task in self._free(of_role)
            if role in self.asked and self.stage is not Stage.RUNNING
        ]
        wanted: dict[str, dict[str, float]] = {}
        for task, requests in tasks:
            add_amounts(wanted.setdefault(task.node, {}), requests)
        return wanted

    def _placed(self) -> list[Pod]:
        """Pods with a node. Of a gang that runs, one that is over or leaves keeps its place until another has it."""
        pods = [pod for pod in self.pods.values() if pod.node]
        if self.stage is not Stage.RUNNING:
            return pods
        placed = [pod for pod in self.live() if pod.node]
        leaving = [pod for pod in pods if pod.is_over or pod.is_deleting]
        if self.plan is not None:
            taken = {id(self.held.get(pod.uid)) for pod in placed}
            left = [(pod.uid, self.held.get(pod.uid)) for pod in leaving]
            keeping = {uid for uid, task in left if task is not None and id(task) not in taken}
        else:
            free = Counter(self.roles())
            free.subtract(count_roles(placed))
            keeping = {pod.uid for pod in first_of_roles(leaving, free)}
        keeping.update(pod.uid for pod in placed)
        return [pod for pod in pods if pod.uid in keeping]  # in their order: else each end would look like a move

    def _use_up(self, pods: Iterable[Pod]) -> None:
        """A pod that runs on another node than any task of its role has used one of them up all the same."""
        for pod in pods:
            if pod.uid not in self.held and (free := self._free(self._tasks_for(pod))):
                self.held[pod.uid] = free[0]

    def _declared(self, pods: list[Pod]) -> dict[str, int]:
        """Without pods in order that have succeeded: they run no more."""
        declared = declared_roles(self.ref, pods, self._facts())
        own = (pod for pod in self.pods.values() if pod.phase == "Succeeded")
        done = Counter(self.done) + Counter(count_roles(own if self.is_in_order else ()))
        left = {role: count - done[role] for role, count in declared.items()}
        return {role: count for role, count in left.items() if count > 0} or declared

    def _with_settings(self, pod: Pod) -> Pod:
        """Volcano copies a vcjob's annotations to its PodGroup, and not to its pods."""
        if self.ref.source is not Source.VOLCANO:
            return pod
        return dataclasses.replace(pod, annotations={**group_settings(self._facts().annotations), **pod.annotations})

    def _later(self) -> Mapping[str, Pod]:
        """Stand-ins, by role, for pods that come after others are ready."""
        return self._facts().templates if self._facts().is_in_order else {}

    def _facts(self) -> GroupFacts:
        return self.facts or GroupFacts()

    def _tasks_for(self, pod: Pod) -> list[Assignment]:
        """Tasks of the pod's role, or of any role if the group does not know the pod's."""
        role = role_of(pod)
        return self.tasks[role] if role in self.tasks else [task for tasks in self.tasks.values() for task in tasks]

    def _free(self, tasks: Iterable[Assignment]) -> list[Assignment]:
        """Those of a decision's tasks that no living pod has."""
        taken = {
            id(held)
            for uid, held in self.held.items()
            if (pod := self.pods.get(uid)) is not None and not pod.is_over and not pod.is_deleting
        }
        return [task for task in tasks if id(task) not in taken]

    def _real(self, pod: Pod) -> Assignment:
        task = self.task_of(pod) if self.plan else None
        real = Assignment(task=pod.name, role=proto_role(role_of(pod)), node=pod.node)
        if task is not None and task.node == pod.node:
            real.CopyFrom(task)
        elif self.job is not None:
            roles = dict(zip(self.job_roles, self.job.groups, strict=True))
            real.demand.CopyFrom(roles.get(role_of(pod), self.job.groups[0]).demand)
        if pod.gpu_indices:
            real.gpu_indices[:] = pod.gpu_indices
        return real


def native_job(gang: Gang, stage: Stage, rules: GangRules) -> NativeJob:
    """The gang in the skeleton's terms."""
    pods = list(gang.pods.values())
    end, reason = end_of(pods) if stage is Stage.ENDED else (None, "")
    starts = [pod.started_s for pod in pods if pod.started_s]
    is_built = (pods or gang.templates) and not gang.is_unreadable
    return NativeJob(
        key=gang.key,
        job=gang.build(rules) if is_built else (gang.job or Job(id=gang.key)),
        stage=stage,
        placement=gang.placement(),
        are_gpus_exact=are_exact(pods, rules.gpu_resources),
        start_time_s=max(starts, default=0.0),
        end=end,
        end_time_s=max((pod.ended_s for pod in pods), default=0.0),
        end_reason=reason,
        can_move=True,
    )
