"""A store that cannot write to its disk: noticed once, reported while it lasts, over by itself."""

from structlog.testing import capture_logs

from placewise_core.domain.errors import StateUnavailableError
from placewise_service.state.errors import UnwritableStateError
from placewise_service.state.redis.disk import DiskWatch


class Store:
    """Gives prepared answers."""

    error: StateUnavailableError | None = None

    async def check_writable(self) -> None:
        if self.error is not None:
            raise self.error


async def test_a_spell_is_logged_once_and_shown_while_it_lasts() -> None:
    store, shown = Store(), list[bool]()
    watch = DiskWatch(store, shown.append)
    with capture_logs() as logs:
        await watch.look()
        assert watch.problem() == ""
        store.error = UnwritableStateError("the state store cannot write to its disk")
        await watch.look()
        await watch.look()
        assert "make room" in watch.problem()
        store.error = None
        await watch.look()
        await watch.look()
    assert watch.problem() == ""
    assert [entry["log_level"] for entry in logs] == ["error", "info"]
    assert shown == [False, True, False]


async def test_a_store_that_does_not_answer_is_taken_for_what_it_was() -> None:
    store, shown = Store(), list[bool]()
    watch = DiskWatch(store, shown.append)
    store.error = StateUnavailableError("away")
    await watch.look()
    assert watch.problem() == ""
    store.error = UnwritableStateError("the state store cannot write to its disk")
    await watch.look()
    store.error = StateUnavailableError("away")
    await watch.look()
    assert watch.problem() != ""
    assert shown == [False, True]
