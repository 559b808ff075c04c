"""The document of the log's columns is that of the Arrow schemas."""

from pathlib import Path

import pytest

from placewise_service.declog import columns

DOCUMENT = Path(__file__).parents[3] / "docs" / "log-columns.md"


def test_the_document_is_as_the_schemas_are() -> None:
    assert DOCUMENT.read_text() == columns.document(), "run `make log-columns`"


@pytest.mark.parametrize("table", columns.WORDS)
def test_words_are_of_columns_that_exist(table: str) -> None:
    inherited = {"id", "position", "record"} if table == columns.JOINED else set()
    assert columns.WORDS[table].keys() - inherited == set(columns.schemas()[table].names)
