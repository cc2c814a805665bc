import pytest

from es_ttc.engine.addresses import engine_addresses
from es_ttc.errors import ConfigurationError
from es_ttc.settings import EngineSettings


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("http://127.0.0.1:9200", "http://127.0.0.1:9200"),
        ("https://user:secret@search.example/", "https://search.example"),
        ("https://search.example:443/behind/a/path/?pretty#top", "https://search.example/behind/a/path"),
    ],
)
def test_an_address_is_kept_without_credentials_and_ornaments(given: str, expected: str) -> None:
    assert [address.url for address in engine_addresses(EngineSettings(engine=given))] == [expected]


@pytest.mark.parametrize(
    "given", ["user:secret@localhost:9200", "ftp://user:secret@localhost", "http://user:secret@:x/"]
)
def test_an_invalid_address_is_refused_without_its_password(given: str) -> None:
    with pytest.raises(ConfigurationError, match=r"\[engine\]") as refused:
        engine_addresses(EngineSettings(engine=given))
    assert "secret" not in str(refused.value)
