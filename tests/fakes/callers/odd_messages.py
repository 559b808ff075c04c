"""Random messages of the contract: most sensible throughout, some odd in values, bytes or counts."""

import random
import string
from typing import Any

# Counts about the limits of the service and the sizes of its steps.
EDGES = (0, 63, 64, 65, 255, 256, 257, 1023, 1024, 1025, 8192, 8193, 10_000, 10_001)
_MOST_PARTS = 20_000  # of one message: more would only make the suite slow
_EDGE_NUMBERS = (-1.0, -0.0, 5e-324, 1e-300, 1e18, 2.0**53 + 2, 1.7e308, float("inf"), float("-inf"), float("nan"), 3.7)
_ODD_LETTERS = string.printable + "é≤𝄞\u202e\u0000\u200b\ufeff\u0301\U0010ffff"


def random_message(rng: random.Random, kind: type[Any], crowding: float = 0.0) -> Any:
    """A random message of a kind, half of them sensible throughout. `crowding`: the share of messages of which one
    repeated field, at any depth, has as many entries as a limit allows, one less or one more."""
    oddness = rng.choice([0.0, 0.0, 0.0, 0.02, 0.02, 0.2])
    return Maker(rng, oddness, rng.random() < crowding).message(kind.DESCRIPTOR, kind(), 0)


def random_bytes(rng: random.Random, kind: type[Any], crowding: float = 0.0) -> bytes:
    """As `random_message`, serialised; some with a few bytes changed."""
    raw = bytearray(random_message(rng, kind, crowding).SerializeToString())
    if raw and rng.random() < 0.1:
        for _ in range(rng.randint(1, 4)):
            raw[rng.randrange(len(raw))] = rng.randrange(256)
    return bytes(raw)


NEEDED = {
    *("id", "cluster", "jobs", "groups", "count", "kind", "job_id", "node", "node_id", "decision_id", "task"),
    *("min_gpus", "max_gpus", "nodes", "gpus_per_node", "parallel_scale", "share", "subtasks"),
}


class Maker:
    """Fills messages with values that the rules allow, except for a share of `oddness`."""

    def __init__(self, rng: random.Random, oddness: float, is_crowded: bool = False) -> None:
        self._rng = rng
        self._oddness = oddness
        self._is_crowded = is_crowded
        self._parts = 0

    def message(self, descriptor: Any, message: Any, depth: int) -> Any:
        rng = self._rng
        for field in descriptor.fields:
            if (field.name not in NEEDED and rng.random() < 0.4) or (field.name == "after" and not self._is_odd()):
                continue
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                value = field.message_type.fields_by_name["value"]
                count = self._count(depth) - rng.choice([0, 1, 1])
                for i in range(count):
                    getattr(message, field.name)[self._text("key") if count < 4 else f"key-{i}"] = self._value(value)
            elif field.is_repeated:
                self._repeated(field, getattr(message, field.name), depth)
            elif field.message_type is not None:
                part = getattr(message, field.name)
                part.SetInParent()
                self.message(field.message_type, part, depth + 1)
            else:
                setattr(message, field.name, self._value(field))
        self._reconcile(message)
        return message

    def _reconcile(self, message: Any) -> None:
        """Fields that must agree with one another mostly do."""
        if self._is_odd():
            return
        if message.DESCRIPTOR.name == "ElasticRange":
            message.min_gpus = 1
        if message.DESCRIPTOR.name == "Node" and message.gpus:
            for i, gpu in enumerate(message.gpus):
                gpu.index = i
            message.capacity.gpus = len(message.gpus)
        if message.DESCRIPTOR.name == "JobEvent" and message.HasField("job"):
            message.job.id = message.job_id
        if message.DESCRIPTOR.name == "ClusterSettings":
            message.exploration_rate = 0.5
            del message.explorers[1:]
            for explorer in message.explorers:
                explorer.policy, explorer.weight = "consolidate", 2
            message.ClearField("exploration_guard")

    def _repeated(self, field: Any, target: Any, depth: int) -> None:
        for _ in range(self._count(depth)):
            self._parts += 1
            if field.message_type is not None:
                self.message(field.message_type, target.add(), depth + 1)
            else:
                target.append(self._value(field))

    def _count(self, depth: int) -> int:
        if self._parts > _MOST_PARTS or depth >= 4:
            return 0
        if self._is_crowded and self._rng.random() < 0.3:
            self._is_crowded = False
            return self._rng.choice(EDGES)
        return self._rng.choice([1, 1, 1, 2, 3])

    def _is_odd(self) -> bool:
        return self._rng.random() < self._oddness

    def _value(self, field: Any) -> Any:
        rng, is_odd = self._rng, self._is_odd()
        if field.enum_type is not None:
            return rng.choice([99, -1, 0]) if is_odd else rng.choice(list(field.enum_type.values_by_number)[1:])
        if field.cpp_type == field.CPPTYPE_STRING:
            return self._odd_text() if is_odd else self._text(field.name)
        if field.cpp_type == field.CPPTYPE_BOOL:
            return rng.random() < 0.3
        if field.cpp_type == field.CPPTYPE_DOUBLE:
            return rng.choice(
                _EDGE_NUMBERS if is_odd else [0.0, 0.5, 1.0, 1.0] if "util" in field.name else [1.0, 1.0, 2.0, 4.0]
            )
        low, high = {
            field.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
            field.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
            field.CPPTYPE_UINT64: (0, 2**64 - 1),
        }[field.cpp_type]
        return rng.choice([0, low, high, rng.randint(low, high)]) if is_odd else rng.randint(1, 4)

    def _text(self, name: str) -> str:
        if name == "cluster":
            return "prod"
        if name == "policy":
            return self._rng.choice(["", "", "consolidate", "tetris", "tiresias", "proteus", "qos", "fifo", "capacity"])
        if name in ("node", "node_id"):
            return self._rng.choice(["n0", "n1", "n2", "n3"])
        if name == "request_id" and self._rng.random() < 0.8:  # a known one is refused with another question
            return f"{self._rng.getrandbits(48):x}"
        if name in ("after", "gpu_model", "key", "request_id", "name"):
            return self._rng.choice(["a", "b", "c"])
        return f"{self._rng.choice('abc')}{self._rng.randrange(50)}"

    def _odd_text(self) -> str:
        length = self._rng.choice([0, 1, 5, 254, 600])
        return "".join(self._rng.choice(_ODD_LETTERS) for _ in range(length))
