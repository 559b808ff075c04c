"""The choice of bundles and its history, in Redis."""

from collections.abc import Mapping, Sequence
from typing import Final

from placewise_service.state import codec
from placewise_service.state.errors import translate_redis_errors
from placewise_service.state.keys import BUNDLE_HISTORY, BUNDLES, EVIDENCE
from placewise_service.state.redis.scripts import Argument, Executor, script
from placewise_service.state.store import EVIDENCE_KEPT_S, MOST_CHANGES, BundleChange, BundleChoice

_CHOICE: Final = ("active", "previous", "shadow", "active_digest", "previous_digest", "shadow_digest")


class RedisBundles:
    """The part of the Redis store that concerns bundles."""

    def __init__(self, client: Executor, scripts: Executor) -> None:
        self._commands = client
        self._bundle_scripts = scripts

    async def bundles(self) -> BundleChoice:
        with translate_redis_errors():
            fields = await self._commands.execute_command(
                "HMGET", BUNDLES, "seq", "digests_of", *_CHOICE, "shadows", "actives", "canaries", "kills"
            )
            *texts, shadows, actives, canaries, kills = fields
        seq, digests_of, active, previous, shadow, *digests = (text.decode() if text else "" for text in texts)
        # Digests of an earlier seq are of an earlier choice: the last one was stored by a process that knows none.
        of_active, of_previous, of_shadow = digests if digests_of == seq else ("", "", "")
        choice = BundleChoice(int(seq or 0), active, previous, shadow, of_active, of_previous, of_shadow)
        with translate_redis_errors():
            choice = codec.with_actives(codec.with_shadows(choice, shadows or b""), actives or b"")
            return codec.with_canaries(choice, canaries or b"", kills or b"")

    async def choose_bundles(self, choice: BundleChoice, change: BundleChange | None = None) -> bool:
        names: list[Argument] = [getattr(choice, field) for field in _CHOICE]
        by_cluster = [codec.encode_shadows(choice), codec.encode_actives(choice)]
        later = [codec.encode_canaries(choice), codec.encode_kills(choice), codec.encode_bundle_change(change)]
        args = [choice.seq, *names, *by_cluster, *later, MOST_CHANGES]
        with translate_redis_errors():
            return bool(await script("choose_bundles").run(self._bundle_scripts, (BUNDLES, BUNDLE_HISTORY), args))

    async def bundle_history(self) -> Sequence[BundleChange]:
        with translate_redis_errors():
            texts = await self._commands.execute_command("LRANGE", BUNDLE_HISTORY, 0, MOST_CHANGES - 1)
        return codec.decode_bundle_changes(texts)

    async def add_evidence(self, salt: str, counts: Mapping[str, int]) -> Mapping[str, int]:
        args: list[Argument] = [round(1000.0 * EVIDENCE_KEPT_S)]
        for name, count in counts.items():
            args += (name, count)
        with translate_redis_errors():
            reply = await script("add_evidence").run(self._bundle_scripts, (EVIDENCE + salt,), args)
        return {name.decode(): int(count) for name, count in zip(reply[::2], reply[1::2], strict=True)}
