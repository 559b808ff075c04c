"""Files are parsed as a whole, whatever else happens in the process."""

import ast
import gc

from tests.fakes.quick.sources import tree_of

TEXT = "x = [[[1, 2], 3], f(4)]\n" * 2000


class Parses:
    """Garbage with a finaliser that parses, as one that logs a traceback does."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        ast.parse("x = [1]")


def test_a_finaliser_that_parses_disturbs_no_parsing() -> None:
    threshold = gc.get_threshold()
    gc.set_threshold(100)
    try:
        for _ in range(5):
            for _ in range(200):
                Parses()
            assert len(tree_of(TEXT).body) == 2000
        assert gc.isenabled()
    finally:
        gc.set_threshold(*threshold)
