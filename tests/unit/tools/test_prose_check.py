"""The prose check reads every kind of text, and counts each kind of phrase."""

from pathlib import Path

import pytest
from tools.prose_check import count, main

# The phrases stand in parameters here and are assembled: this file is itself read by the check.
WHAT, WHERE, TOLD, ANEW = "wh" + "at is held", "wh" + "ere the job", "is to" + "ld", "an" + "ew"
WHAT_KIND, WHERE_KIND, TOLD_KIND, ANEW_KIND = (
    "noun hidden in a what-clause",
    "where, for if or when",
    "told and said",
    "anew, whosoever",
)


@pytest.mark.parametrize(
    ("name", "text", "hits"),
    [
        ("comment.py", f"x = 1  # {WHAT} and {WHERE}", {WHAT_KIND: 1, WHERE_KIND: 1}),
        ("docstring.py", f'def f():\n    """{TOLD}\n    {ANEW}"""', {TOLD_KIND: 1, ANEW_KIND: 1}),
        ("message.py", f'raise ValueError(f"{WHAT} by {{owner}} alone")', {WHAT_KIND: 1}),
        ("key.py", f'x = "{ANEW}"', {}),
        ("code.py", 'x = "the column `wh' + 'at is` of a table"', {}),
        ("broken.py", f"def # {WHAT}", {}),
        ("document.md", f"{WHAT}\n```\n{WHAT}\n```\n`{WHAT}`", {WHAT_KIND: 1}),
        ("contract.proto", f"string a = 1; // {WHAT}\n// {WHERE}", {WHAT_KIND: 1, WHERE_KIND: 1}),
        ("script.lua", f"-- {WHAT}\nlocal x = 'y'", {WHAT_KIND: 1}),
        ("page.js", f"// {TOLD}", {TOLD_KIND: 1}),
        ("message.js", f"const a = `no ${{b}} {WHAT}`; /* {TOLD} */", {WHAT_KIND: 1, TOLD_KIND: 1}),
        ("hook.sh", f"a=${{b#c}}  # {TOLD}\necho '{WHAT}'", {TOLD_KIND: 1}),
        ("chart.yaml", f"# {WHAT}\na: b", {WHAT_KIND: 1}),
        ("Makefile", f"## {WHAT}\nall: # {TOLD}", {WHAT_KIND: 1, TOLD_KIND: 1}),
        ("Dockerfile", f"# {WHAT}\nFROM x", {WHAT_KIND: 1}),
        ("Line.java", f"int a; // {WHAT}\n/// {WHERE}", {WHAT_KIND: 1, WHERE_KIND: 1}),
        ("Block.java", f"/* {WHAT} */ int a;\n/**\n * {TOLD}\n */", {WHAT_KIND: 1, TOLD_KIND: 1}),
        ("Message.java", f'throw new E("no \\" {WHAT} // {TOLD}");', {WHAT_KIND: 1, TOLD_KIND: 1}),
        ("Quotes.java", f"// it's\nchar c = '\"'; // {TOLD}\nString s = \"// {ANEW}\";", {TOLD_KIND: 1}),
        ("TextBlock.java", f'String s = """\n  {WHAT} here\n  """; // {TOLD}', {WHAT_KIND: 1, TOLD_KIND: 1}),
        ("page.html", f"<p title='{ANEW}'>{WHAT}</p>", {WHAT_KIND: 1}),
    ],
)
def test_text_is_read_in_every_kind_of_file(tmp_path: Path, name: str, text: str, hits: dict[str, int]) -> None:
    file = tmp_path / name
    file.write_text(text)
    assert dict(count(file).hits) == hits


def test_messages_can_be_left_out(tmp_path: Path) -> None:
    file = tmp_path / "message.py"
    file.write_text(f'"""A module."""\nx = "{WHAT} here"')
    assert count(file).words == 6  # "A module." and the message
    assert count(file, messages=False).words == 2


def test_stubs_and_hidden_folders_are_not_read(tmp_path: Path) -> None:
    for name in ("a_pb2.py", ".hidden/a.py", "build/a.md", "__pycache__/a.py", "table.csv"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(f"# {WHAT}")
    assert count(tmp_path).words == 0


@pytest.mark.parametrize(("hits", "code"), [(0, 0), (1, 0), (2, 1)])
def test_a_path_with_more_than_the_limit_fails(tmp_path: Path, hits: int, code: int) -> None:
    (tmp_path / "notes.md").write_text(f"{WHAT}\n" * hits + "word " * 100)
    assert main(["--limit", "1", str(tmp_path)]) == code


def test_a_clean_path_does_not_make_up_for_another(tmp_path: Path) -> None:
    (tmp_path / "long.md").write_text("word " * 10_000)
    (tmp_path / "short.md").write_text(f"{WHAT}\n" * 2)
    assert main([str(tmp_path)]) == 0
    assert main([str(tmp_path / "long.md"), str(tmp_path / "short.md")]) == 1
