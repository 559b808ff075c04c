"""An evaluation in JSON, in lines and as a page."""

import json
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

from placewise_training.evaluate.checks.synthetic import REWARD_BOUND, WEIGHTS, synthetic_log
from placewise_training.evaluate.judge import judged
from placewise_training.evaluate.report import Evaluation, as_json, lines, page


@pytest.fixture(scope="module")
def found() -> Evaluation:
    log = synthetic_log(WEIGHTS["light"], 150, 3)
    candidates = {"<b>new</b>": log, "unexplored": replace(log, propensity=np.ones(len(log.reward)))}
    return Evaluation(
        {"decisions": 337, "log": "a & b"}, ("<b>new</b>", "other"), 4, tuple(judged(candidates, REWARD_BOUND, 4))
    )


def test_json_has_the_estimand_the_count_and_every_number(found: Evaluation) -> None:
    made = json.loads(json.dumps(as_json(found), allow_nan=False))
    assert made["estimand"] == "mean reward_h if one decision were the candidate's and all others the logging policy's"
    assert (made["tried"], made["compared"]) == (4, ["<b>new</b>", "other"])
    new, unexplored = made["candidates"]
    assert [row["estimator"] for row in new["estimates"]] == ["ips", "snips", "direct", "doubly_robust", "switch_dr"]
    assert new["estimates"][0]["gain_interval"] == list(found.judgements[0].rows[0].gain_interval)
    assert new["detectable_gain"] > 0
    assert unexplored["estimates"] == []
    assert [reason["name"] for reason in unexplored["refusals"]] == ["NO_EXPLORATION"]
    assert not found.is_refused


def test_lines_print_the_numbers_of_a_refusal(found: Evaluation) -> None:
    text = "\n".join(lines(found))
    assert "refused, NO_EXPLORATION: none of 337 decisions was drawn" in text
    assert "doubly_robust decides: p " in text
    assert "after 4 candidates" in text


def test_the_page_is_well_formed_and_escapes_names(found: Evaluation) -> None:
    text = page(found)
    root = ElementTree.fromstring(text.partition("\n")[2].replace('<meta charset="utf-8">', ""))
    titles = [element.text for element in root.iter("h2")]
    assert titles == ["<b>new</b>", "unexplored", "Outside this report"]
    assert "a & b" in [element.text for element in root.iter("td")]
    assert len(list(root.iter("{http://www.w3.org/2000/svg}svg"))) == 1
    assert page(found) == text
