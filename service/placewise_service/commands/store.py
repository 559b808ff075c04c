"""Opens the state store named by the service's settings, for commands without a gRPC call.

Shares Redis with a running service. If the embedded Redis is not running, it is started and runs as
long as the command takes.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from placewise_core.domain.errors import StateUnavailableError
from placewise_service.commands.exits import CommandError, Exit
from placewise_service.settings import Settings, SettingsError, load_settings
from placewise_service.state.redis.connection import RedisOptions
from placewise_service.state.redis.embedded import EmbeddedRedis, EmbeddedRedisError, embedded_url
from placewise_service.state.redis.redis_store import RedisStore

_TIMEOUT_S = 10.0  # a command may wait longer than a decision


def settings() -> Settings:
    """The service's settings from the environment. Raises CommandError."""
    try:
        return load_settings()
    except SettingsError as error:
        raise CommandError(str(error), Exit.USAGE) from None


def redis_options(found: Settings, url: str = "") -> RedisOptions:
    """How to reach the Redis these settings name; `url` for the embedded one."""
    redis = found.redis
    return RedisOptions(
        url=url or (found.redis_url.get_secret_value() if found.redis_url else embedded_url(found.state_dir)),
        timeout_s=_TIMEOUT_S,
        connections=redis.connections,
        ca_file=redis.ca_file,
        cert_file=redis.cert_file,
        key_file=redis.key_file,
        sentinel_service=redis.sentinel_service,
        is_cluster=redis.is_cluster,
    )


@asynccontextmanager
async def opened_store() -> AsyncIterator[RedisStore]:
    """The store, closed at the end. Raises CommandError if it cannot be opened."""
    found = settings()
    if found.redis_url is not None or await _answers(RedisStore(redis_options(found))):
        async with _closing(RedisStore(redis_options(found))) as store:
            yield store
        return
    if not (found.state_dir / "redis").is_dir():
        message = f"no service has ever run in {found.state_dir.absolute()}: set PLACEWISE_STATE_DIR or _REDIS_URL"
        raise CommandError(message, Exit.UNREACHABLE)
    try:
        with EmbeddedRedis(found.state_dir, found.redis.command) as redis:
            async with _closing(RedisStore(redis_options(found, redis.url))) as store:
                yield store
    except (EmbeddedRedisError, FileNotFoundError) as error:
        raise CommandError(str(error), Exit.UNREACHABLE) from None


@asynccontextmanager
async def _closing(store: RedisStore) -> AsyncIterator[RedisStore]:
    try:
        yield store
    finally:
        await store.close()


async def _answers(store: RedisStore) -> bool:
    async with _closing(store):
        with suppress(StateUnavailableError):
            await store.ping()
            return True
    return False
