"""The adapter and the real service by HTTPS, with a token. `make e2e-yarn` runs this."""

from __future__ import annotations

import random
import ssl
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from tests.e2e.yarn.yarn_artefacts import HADOOP
from tests.e2e.yarn.yarn_cluster import wait_for
from tests.e2e.yarn.yarn_gangs import Driver, account, mixed
from tests.e2e.yarn.yarn_world import CLUSTER, MARKS, PLACEWISE, Door, yarn_world
from tests.fakes.callers.tls import Authority

pytestmark = MARKS
_WORD = "changeit"


def keep(provider: str, **secrets: str) -> None:
    """Puts secrets into Hadoop's credential provider by its own command."""
    command = ["java", "-cp", f"{HADOOP}/*", "org.apache.hadoop.security.alias.CredentialShell", "create"]
    for alias, secret in secrets.items():
        name = f"placewise.{alias.replace('_', '-')}"
        words = [*command, name, "-value", secret, "-provider", provider]
        subprocess.run(words, check=True, capture_output=True, timeout=60)


def trust(root: Path, store: Path) -> None:
    flags = [
        "-noprompt",
        "-alias",
        "ca",
        "-file",
        root,
        "-keystore",
        store,
        "-storepass",
        _WORD,
        "-storetype",
        "PKCS12",
    ]
    subprocess.run(["keytool", "-importcert", *map(str, flags)], check=True, capture_output=True, timeout=60)


def test_the_service_is_asked_by_https_with_the_token_of_the_credential_provider(tmp_path: Path) -> None:
    authority = Authority("a site")
    chain, key = authority.write(tmp_path, "service")
    root, tokens, store = (tmp_path / name for name in ("root.pem", "tokens.yaml", "trust.p12"))
    root.write_bytes(authority.pem)
    create = [PLACEWISE, "token", "create", "yarn", "--file", str(tokens), "--cluster", CLUSTER]
    scopes = [word for scope in ("read", "decide", "report") for word in ("--scope", scope)]
    made = subprocess.run([*create, *scopes], check=True, capture_output=True, text=True, timeout=60).stdout
    token = made.split()[0]
    trust(root, store)
    provider = f"localjceks://file{tmp_path}/kept.jceks"
    keep(provider, token=token, trust_store_password=_WORD)
    environment = {
        "PLACEWISE_TLS__CERT_FILE": str(chain),
        "PLACEWISE_TLS__KEY_FILE": str(key),
        "PLACEWISE_AUTH__TOKENS_FILE": str(tokens),
    }
    door = Door(environment, token, ssl.create_default_context(cafile=str(root)))
    settings = {
        "placewise.decide-budget-ms": 3000,
        "placewise.trust-store": store,
        "hadoop.security.credential.provider.path": provider,
    }
    with yarn_world(settings, door=door) as world:
        found = account(world, Driver(world).start(mixed(8, random.Random(9))).results(120))
        print(found)
        assert found.as_decided == found.total == 8
        wait_for(world.is_quiet, "the service to hear that all containers are over", 30)
        with urllib.request.urlopen(f"{world.yarn.web.removesuffix('ws/v1/cluster')}conf", timeout=10) as shown:
            assert token not in shown.read().decode()
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(
                f"{door.url(world.rest_port)}/v1/clusters/{CLUSTER}", timeout=10, context=door.context
            )
