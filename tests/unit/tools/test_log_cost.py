"""The verdict of the benchmark of logging: figures from made-up sittings."""

import math

import pytest
from tests.bench.log_cost import SHARES, Sitting, interval, line_of, verdict


def sitting(p50_at_one_percent: float, rps_at_one_percent: float = 1000.0) -> Sitting:
    p50 = dict.fromkeys(SHARES, 1.0) | {"1 %": p50_at_one_percent, "100 %": 1.5, "echo": 0.5}
    rps = dict.fromkeys(SHARES, 1000.0) | {"1 %": rps_at_one_percent, "100 %": 600.0, "echo": 4000.0}
    cpu = dict.fromkeys(SHARES, 1.0) | {"100 %": 1.75}
    return Sitting(p50, rps, cpu)


def test_the_verdict_holds_one_percent_to_three(capsys: pytest.CaptureFixture[str]) -> None:
    assert verdict([sitting(1.0), sitting(1.04), sitting(1.01)]) == 0
    out = capsys.readouterr().out
    assert "p50 +1.7% ± 5.2%" in out
    assert (
        "100 %      p50 +50.0% ± 0.0%, rps -40.0% ± 0.0%, cpu +75.0% ± 0.0%   (of the echo: p50 3.00, rps 0.150)" in out
    )
    assert verdict([sitting(1.04), sitting(1.05)]) == 1
    assert verdict([sitting(1.0, 960.0)]) == 1
    assert "SLOWER" in capsys.readouterr().out


def test_an_interval_is_students() -> None:
    mean, half = interval([1.0, 2.0, 3.0])
    assert (mean, half) == (2.0, pytest.approx(4.3027 / math.sqrt(3), abs=1e-3))
    assert math.isnan(interval([1.0])[1])


def test_a_round_is_told_as_ratios_to_the_echo() -> None:
    assert line_of(sitting(1.25)).startswith("off p50 2.00, off again p50 2.00, 0 % p50 2.00, 1 % p50 2.50")
