"""The key schema, in one place. docs/state.md explains each key.

Every key of a cluster carries its name in braces: Redis Cluster hashes only the part inside them, so that all keys of
one cluster live in one slot and a script may change several of them at once. Only the registry and the
choice of bundles with its history stand outside.
"""

from dataclasses import fields
from functools import lru_cache

from placewise_core.basics.frozen import frozen

# Names of the clusters that exist. It is no part of any mutation: clusters() checks each name against its meta key.
REGISTRY = "pw:clusters"
# hash: seq, the names of the active, the previous and the shadow bundle, for every process alike, and their digests;
# JSON of the shadows, of the active bundles, of the canaries and of the kill switches, by cluster.
BUNDLES = "pw:bundles"
# list: changes of that choice, newest first. The braces put it into the slot of the choice.
BUNDLE_HISTORY = "{pw:bundles}:history"
# hash for each salt of a canary, which follows: what guards counted.
EVIDENCE = "{pw:bundles}:evidence:"


@frozen
class ClusterKeys:
    """The keys of one cluster. Fields are in the order that delete_cluster.lua is given them."""

    meta: str  # hash: schema, life, version, last event id, settings, trim marks, the host's time
    events: str  # stream: one entry per version, id version-microseconds
    nodes: str  # hash: node id → node
    capacities: str  # hash: node id → what reserve.lua checks against
    used: str  # hash: node id → what jobs hold there
    jobs: str  # hash: job id → job and assignments as reserved or started
    holds: str  # hash: job id → reservation id and the job's holds
    expiring: str  # sorted set: reserved job ids by expiry
    reservations: str  # hash: reservation id → job ids
    progress: str  # hash: job id → start time, speed, epochs done
    ended: str  # sorted set: ids of ended jobs by the time they are forgotten
    lapsed: str  # hash: job id → its expired reservation; "" → bytes of all
    lapsed_times: str  # sorted set: lapsed job ids by the time they are forgotten
    answers: str  # hash: request id → answer, expiry of its reservations, fingerprint
    answer_times: str  # sorted set: request ids by the time they are forgotten
    queues: str  # hash: queue → state
    queue_seqs: str  # hash: queue → seq
    overheads: str  # hash: task kind → count and mean overhead
    outcomes: str  # sorted set: outcome ids by the time they are forgotten
    profiles: str  # hash: subtask kind → metrics
    profile_times: str  # sorted set: the same kinds by the time they were last used
    decisions: str  # stream: the decision log's ring
    decision_bytes: str  # string: size of the ring's records
    exported: str  # string: position up to which the log is exported
    links: str  # hash: job id → the decision that admitted it, and the first Place that asked about it
    older_links: str  # hash: the same of jobs asked about before
    views: str  # stream: the log of views, snapshots and events
    views_bytes: str  # string: size of its records
    views_exported: str  # string: position up to which it is exported
    views_copied: str  # hash: life and id of the last event in it
    decision_drops: str  # string: entries of the decision log that were lost before they were exported
    views_drops: str  # string: entries of the log of views that were
    row_sums: str  # hash: last part of the key, colon, name → sum of a row of progress, overheads or profiles
    overhead_times: str  # sorted set: kinds of overheads by the time they were last reported

    @property
    def all(self) -> tuple[str, ...]:
        return tuple(getattr(self, field.name) for field in fields(self))


@lru_cache(maxsize=1024)
def keys_of(cluster: str) -> ClusterKeys:
    """The keys of a cluster. Raises ValueError for a name that would break the hash tag."""
    if not cluster or "{" in cluster or "}" in cluster:
        raise ValueError(f"cluster name {cluster!r} is empty or has braces")
    names = {field.name: f"pw:{{{cluster}}}:{field.name}" for field in fields(ClusterKeys)}
    return ClusterKeys(**names)
