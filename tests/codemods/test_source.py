"""Bytes to text and back, and what is refused before any rewrite sees it."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codemods.source import Unreadable, check_python, decode


@given(
    st.text(alphabet=st.sampled_from("ab é\t\n#'")), st.sampled_from(["\n", "\r\n"]), st.booleans()
)
def test_bytes_survive(text: str, line_end: str, bom: bool) -> None:
    data = b"\xef\xbb\xbf" * bom + text.replace("\n", line_end).encode()
    assert decode(data).encode() == data


@pytest.mark.parametrize(
    ("data", "message", "line"),
    [
        (b"x = 1\n\xff\n", "not UTF-8", 2),
        ("x = 1\n".encode("utf-16"), "not UTF-8", 1),
        (b"x = 1\n\ny = '\0'\n", "NUL", 3),
        (b"x = 1\r\ny = 2\rz = 3\n", "carriage return", 2),
    ],
)
def test_unreadable_bytes_have_a_line(data: bytes, message: str, line: int) -> None:
    with pytest.raises(Unreadable, match=message) as caught:
        decode(data)
    assert caught.value.line == line


@pytest.mark.parametrize(
    ("text", "line"),
    [("x = 1\ny = (\n", 2), ("def f():\nreturn 1\n", 2), ("x = 1\nreturn x\n", 2)],
)
def test_broken_python_has_a_line(text: str, line: int) -> None:
    with pytest.raises(Unreadable, match="not valid Python") as caught:
        check_python(text)
    assert caught.value.line == line


def test_absurd_nesting_is_refused_and_not_a_crash() -> None:
    with pytest.raises(Unreadable):
        check_python("x = " + "-" * 100_000 + "1\n")


@pytest.mark.parametrize(
    "text",
    [
        "type Alias = int\n",
        "def f[T](x: T) -> T: ...\n",
        'x = f"{\', \'.join(f"{k}" for k in y)}"\n',
    ],
)
def test_grammar_of_python_3_12_is_accepted_on_3_11(text: str) -> None:
    assert sys.version_info < (3, 12), "this test is about the older Python"
    check_python(text)
