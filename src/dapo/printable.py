"""Text of anyone's making, fit for a terminal: it can't move the cursor, change colours or reorder a line."""

from __future__ import annotations

import unicodedata
from typing import Any


class _Escapes(dict[int, int | str]):
    """For str.translate: what could steer a terminal or reorder a line as its escape, all else as it is."""

    def __missing__(self, code: int) -> int | str:
        kind = unicodedata.category(chr(code))
        steers = kind in ("Cc", "Cs", "Zl", "Zp") or (kind == "Cf" and code not in (0x200C, 0x200D))
        self[code] = chr(code).encode("unicode_escape").decode() if steers else code
        return self[code]


_ESCAPES = _Escapes({ord("\n"): "\n", ord("\t"): "\t"})


def printable(text: str) -> str:
    r"""The text with escapes in place of control and format characters and lone surrogates; line ends stay.

    >>> printable("red: \x1b[31m")
    'red: \\x1b[31m'
    """
    return text.translate(_ESCAPES)


def one_line(value: Any, limit: int) -> str:
    r"""Anything on one line of at most so many characters; - for None.

    >>> one_line("a  long\nanswer", 9)
    'a long...'
    """
    text = "-" if value is None else printable(" ".join(str(value).split()))
    return text if len(text) <= limit else text[: limit - 3] + "..."
