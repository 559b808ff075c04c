"""Settings: allowed and refused variables, and the documentation lists every one."""

from pathlib import Path

import pytest

from placewise_service.settings import Settings, SettingsError, load_settings, reject_unknown, settings_markdown

DOCS = Path(__file__).parents[3] / "docs" / "settings.md"


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in [name for name in os.environ if name.startswith("PLACEWISE_")]:
        monkeypatch.delenv(name)


def test_defaults_bind_the_loopback_alone() -> None:
    settings = load_settings()
    server = settings.server
    assert (server.grpc_host, server.rest_host, server.health_host) == ("127.0.0.1", "127.0.0.1", "127.0.0.1")
    assert settings.redis_url is None


def test_a_variable_sets_one_field_of_a_section(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACEWISE_SERVER__GRPC_PORT", "7000")
    settings = load_settings(server={"workers": 2})
    assert (settings.server.grpc_port, settings.server.workers, settings.server.rest_port) == (7000, 2, 8080)


def test_the_redis_url_is_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACEWISE_REDIS_URL", "redis://user:hunter2@host:6379")
    settings = load_settings()
    assert settings.redis_url is not None
    assert settings.redis_url.get_secret_value() == "redis://user:hunter2@host:6379"
    assert "hunter2" not in repr(settings)
    assert "hunter2" not in str(settings.effective())


def test_an_empty_redis_url_means_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACEWISE_REDIS_URL", "")
    assert load_settings().redis_url is None


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("PLACEWISE_SERVER__GRPC_PROT", "PLACEWISE_SERVER__GRPC_PORT"),
        ("PLACEWISE_SERVR__GRPC_PORT", "PLACEWISE_SERVER__GRPC_PORT"),
        ("placewise_redis_ulr", "PLACEWISE_REDIS_URL"),
        ("PLACEWISE_GRPC_PORT", "PLACEWISE_SERVER__GRPC_PORT"),
    ],
)
def test_a_misspelt_variable_is_refused_with_the_nearest_name(name: str, near: str) -> None:
    with pytest.raises(SettingsError, match=near):
        reject_unknown({name: "1"})


def test_variables_of_other_programs_are_left_alone() -> None:
    names = ("PLACEWISE_SLURM_TARGET", "PLACEWISE_SHARE_UNIT", "PLACEWISE_TEST_FUZZ_CASES", "PATH")
    reject_unknown(dict.fromkeys(names, "9"))


@pytest.mark.parametrize(
    "server", [{"grpc_host": "0.0.0.0"}, {"rest_host": "::"}, {"grpc_host": "10.0.0.1", "rest_host": "127.0.0.1"}]
)
def test_another_address_needs_authentication_or_an_explicit_word(server: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="--insecure"):
        load_settings(server=server)
    assert load_settings(server={**server, "insecure": True})
    tls = {"cert_file": "a", "key_file": "b"}
    with pytest.raises(SettingsError, match="--insecure"):
        load_settings(server=server, tls=tls)  # TLS alone authenticates nobody
    assert load_settings(server=server, tls=tls, auth={"tokens_file": tmp_path / "tokens.yaml"})
    with_clients = {**tls, "client_ca_file": "c"}
    assert load_settings(server=server, tls=with_clients, auth={"certificates_file": "d"})


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
def test_certificates_open_nothing_until_a_file_says_what(host: str) -> None:
    tls = {"cert_file": "a", "key_file": "b", "client_ca_file": "c"}
    with pytest.raises(SettingsError, match="PLACEWISE_AUTH__CERTIFICATES_FILE"):
        load_settings(server={"rest_host": host}, tls=tls)
    assert load_settings(server={"rest_host": host, "insecure": True}, tls=tls)
    assert load_settings(server={"rest_host": host}, tls=tls, auth={"certificates_file": "d"})
    assert load_settings(server={"rest_host": host}, tls=tls, auth={"tokens_file": "d"})
    with pytest.raises(SettingsError, match="PLACEWISE_TLS__CLIENT_CA_FILE"):
        load_settings(auth={"certificates_file": "d"})


@pytest.mark.parametrize(
    "auth", [{"tokens_file": "t"}, {"jwks_file": "k", "jwt_issuer": "i", "jwt_audience": "a"}], ids=["tokens", "jwt"]
)
def test_tokens_in_clear_are_for_the_loopback(auth: dict[str, object]) -> None:
    public = {"grpc_host": "127.0.0.1", "rest_host": "10.0.0.1"}
    with pytest.raises(SettingsError, match="PLACEWISE_AUTH__ALLOW_PLAINTEXT_TOKENS"):
        load_settings(server=public, auth=auth)
    with pytest.raises(SettingsError, match="PLACEWISE_AUTH__ALLOW_PLAINTEXT_TOKENS"):
        load_settings(server={**public, "insecure": True}, auth=auth)  # another word for another risk
    assert load_settings(server=public, auth={**auth, "allow_plaintext_tokens": True})
    assert load_settings(server=public, auth=auth, tls={"cert_file": "a", "key_file": "b"})
    assert load_settings(auth=auth)


@pytest.mark.parametrize(
    ("section", "values", "text"),
    [
        ("server", {"grpc_port": 70_000}, "PLACEWISE_SERVER__GRPC_PORT"),
        ("server", {"grpc_prot": 1}, "PLACEWISE_SERVER__GRPC_PROT"),
        ("tls", {"cert_file": "a"}, "belong together"),
        ("tls", {"client_ca_file": "a"}, "needs cert_file"),
        ("admit", {"slot_s": 0}, "PLACEWISE_ADMIT__SLOT_S"),
        ("auth", {"jwks_file": "k", "jwt_issuer": "i"}, "belong together"),
    ],
)
def test_a_wrong_value_is_named(section: str, values: dict[str, object], text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        load_settings(**{section: values})


def test_settings_do_not_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings().state_dir = Path("/")  # type: ignore[misc]


def test_the_documentation_lists_every_setting() -> None:
    assert DOCS.read_text() == settings_markdown()
