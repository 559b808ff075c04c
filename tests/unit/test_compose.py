"""docker-compose.yml and its images: the services started by default, and those that the profile `retrain` adds."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from placewise_training.retrain.command import retrain_app

ROOT = Path(__file__).parents[2]
REPLICAS = ("placewise-1", "placewise-2")
HARDENED = {"read_only": True, "cap_drop": ["ALL"], "security_opt": ["no-new-privileges:true"], "init": True}


def interpolated(text: str, **variables: str) -> str:
    """With ${NAME:-default} as Compose reads it."""
    return re.sub(r"\$\{(\w+):-([^}]*)\}", lambda match: variables.get(match[1]) or match[2], text)


def services(file: str = "docker-compose.yml", **variables: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(interpolated((ROOT / file).read_text(), **variables))["services"]
    return found


def options(**variables: str) -> dict[str, Any]:
    """Of the command of `retrain`, as the command line reads them."""
    name, *words = shlex.split(services(**variables)["retrain"]["command"])
    assert name == "retrain"
    with get_command(retrain_app).make_context(name, words) as context:  # type: ignore[attr-defined]
        return dict(context.params)


def test_only_the_profile_starts_a_retraining() -> None:
    profiles = {name: service.get("profiles", []) for name, service in services().items()}
    assert profiles == {"redis": [], "placewise-1": [], "placewise-2": [], "retrain": ["retrain"]}


def test_without_the_flag_there_is_no_canary() -> None:
    assert options()["canary"] == 0.0
    assert options(RETRAIN_CANARY_SHARE="0.05")["canary"] == 0.05


def test_what_an_operator_sets_reaches_the_command() -> None:
    found = options(
        RETRAIN_CLUSTER="lab", RETRAIN_EVERY_MIN="30", RETRAIN_OPTIONS="--effort 0.1 --policy search --policy harmony"
    )
    chosen = {name: found[name] for name in ("cluster", "every", "effort", "policy", "start", "rounds_")}
    assert chosen == {
        "cluster": "lab", "every": 30.0, "effort": 0.1, "policy": ["search", "harmony"], "start": None, "rounds_": 0,
    }  # fmt: skip
    assert options()["every"] == 24 * 60


def test_replicas_read_the_bundles_that_the_retraining_writes() -> None:
    found, made = services(), options()
    folder = str(made["out"].parent)
    for name in REPLICAS:
        assert found[name]["volumes"] == [f"bundles:{folder}:ro"]
        assert found[name]["environment"]["PLACEWISE_BUNDLE_DIR"] == folder
    assert found["retrain"]["volumes"] == [f"exports:{made['log']}", f"bundles:{folder}"]
    runtime = next(stage for stage in stages() if stage.name == "runtime")
    for path in (folder, str(made["log"])):  # a volume takes the owner of the folder that it covers
        assert re.search(rf"install -d -o 10001 -g 10001 .*{path}\b", runtime.text)


def test_a_retraining_is_confined_as_replicas_are_and_cannot_reach_redis() -> None:
    found = services()
    for name in (*REPLICAS, "retrain"):
        assert {key: found[name][key] for key in HARDENED} == HARDENED, name
    assert not set(found["retrain"]["networks"]) & set(found["redis"]["networks"])
    assert all(set(found["retrain"]["networks"]) < set(found[name]["networks"]) for name in REPLICAS)
    assert "ports" not in found["retrain"]


def test_with_tokens_a_retraining_has_a_token_of_its_own_and_not_the_list() -> None:
    found = services("docker-compose.tokens.yml")
    (mount,) = found["retrain"]["volumes"]
    source, folder, mode = mount.split(":")
    assert mode == "ro"
    assert source != found["placewise-1"]["volumes"][0].split(":")[0]
    assert Path(found["retrain"]["environment"]["PLACEWISE_CLIENT_TOKEN_FILE"]).parent == Path(folder)


class Stage:
    """One stage of deploy/Dockerfile: its name, "" for the last; its base, and those that it copies from."""

    def __init__(self, text: str) -> None:
        head = re.match(r"FROM (\S+)(?: AS (\S+))?", text)
        assert head is not None
        self.base, self.name = head[1], head[2] or ""
        self.text = text.replace("\\\n", " ")
        self.sources = {self.base, *re.findall(r"--from=(\S+)", text)}


def stages() -> list[Stage]:
    return [Stage(text) for text in re.split(r"\n(?=FROM )", (ROOT / "deploy/Dockerfile").read_text())[1:]]


def behind(name: str) -> set[str]:
    """The stages that one is made of."""
    (stage,) = (each for each in stages() if each.name == name)
    known = {each.name for each in stages()}
    return {name} | {each for source in stage.sources & known for each in behind(source)}


def test_the_serving_image_is_the_last_stage_and_nothing_of_training_is_in_it() -> None:
    assert stages()[-1].name == ""
    assert not behind("") & {"training", "training-build", "training-packages"}
    text = "".join(stage.text for stage in stages() if stage.name in behind(""))
    assert "torch.txt" not in text
    assert "train.txt" not in text
    assert '! /opt/placewise/bin/python -c "import torch"' in text
    assert all("target" not in services()[name]["build"] for name in REPLICAS)


def test_the_training_image_runs_as_the_service_does_and_its_health_is_not_asked() -> None:
    assert services()["retrain"]["build"]["target"] == "training"
    text = "".join(stage.text for stage in stages() if stage.name in behind("training"))
    assert "USER 10001:10001" in text
    assert "HEALTHCHECK" not in text
    assert "HEALTHCHECK" in stages()[-1].text


@pytest.mark.parametrize("file", ["docker-compose.yml", "docker-compose.tokens.yml"])
def test_every_variable_has_a_default(file: str) -> None:
    """One that has none would stop everybody, also those who leave the profile out."""
    assert re.findall(r"\$\{\w+(?!\w|:-)", (ROOT / file).read_text()) == []
