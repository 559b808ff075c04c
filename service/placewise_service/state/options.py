"""Options of both stores: how long records are kept."""

from placewise_core.basics.frozen import frozen


@frozen
class StoreOptions:
    """`retain_events_s`: a replica that falls further behind reloads the cluster. `ended_ttl_s`: how late an event
    of an ended job may arrive and still be known as late. `lapsed_ttl_s`, `lapsed_bytes`: how long the placements of
    expired reservations are kept for hosts that start late, and how many bytes of them per cluster. `ring_records`,
    `ring_bytes`: bounds of the decision log per cluster; the first to be reached holds. `links_ttl_s`: how long an idle
    cluster's log knows which decisions asked about its jobs. `views_bytes`: bound of the log of views."""

    answer_ttl_s: float = 600.0
    ended_ttl_s: float = 3600.0
    lapsed_ttl_s: float = 86_400.0
    lapsed_bytes: int = 64 * 2**20
    outcome_ttl_s: float = 86_400.0
    retain_events_s: float = 30.0
    ring_records: int = 100_000
    ring_bytes: int = 256 * 2**20
    links_ttl_s: int = 86_400
    views_bytes: int = 128 * 2**20
