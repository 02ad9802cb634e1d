"""The extension of griffe, which reads the docstrings for the site.

In the docstrings of sa_doclock a paragraph may follow the list of parameters and errors.  griffe would make it a
part of the last error, so it goes in front of the list.
"""

from __future__ import annotations

from typing import Any

import griffe


class ParagraphsFirst(griffe.Extension):
    """Moves the paragraphs behind the fields of a docstring in front of them."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of one object."""
        if obj.docstring is not None:
            obj.docstring.value = paragraphs_first(obj.docstring.value)


def paragraphs_first(text: str) -> str:
    """Return the docstring with its fields at the end."""
    text_of_it: list[str] = []
    fields: list[str] = []
    target = text_of_it
    blank = True
    for line in text.splitlines():
        if line.startswith(":") and not line.startswith(":class:"):
            target = fields
        elif blank and line and not line.startswith(" "):
            target = text_of_it
        blank = not line
        target.append(line)
    if fields and text_of_it and text_of_it[-1]:
        text_of_it.append("")
    return "\n".join([*text_of_it, *fields])
