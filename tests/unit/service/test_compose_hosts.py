"""The hosts that docker-compose.yml allows are the names of its replicas."""

import re
from pathlib import Path

import yaml

COMPOSE = Path(__file__).parent.parent.parent.parent / "docker-compose.yml"


def test_every_replica_may_be_asked_by_its_name() -> None:
    document = yaml.safe_load(COMPOSE.read_text())
    template = document["x-replica"]
    replicas = {name for name, service in document["services"].items() if template.items() <= service.items()}
    allowed = re.fullmatch(r"\$\{ALLOWED_HOSTS:-(.*)\}", template["environment"]["PLACEWISE_SERVER__ALLOWED_HOSTS"])
    assert allowed is not None
    assert len(replicas) > 1
    assert set(allowed[1].split(",")) == replicas
