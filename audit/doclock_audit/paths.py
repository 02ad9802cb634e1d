"""The paths of a report: relative to the project, or to the folder of installed packages."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from os.path import normpath
from pathlib import Path

from sa_doclock.testing.instruments import printable

from .places import in_packages, is_of_tests


class Paths:
    """Shows places in the program with paths relative to the project.

    :param root: the folder of the project.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def site(self, site: str) -> str:
        """Return the place with its file relative to the project, marked if it belongs to the tests."""
        return f"{self.relative(site)}{' (test)' if self.is_of_tests(site) else ''}"

    def relative(self, site: str) -> str:
        """Return the place with its file relative to the project, or to the installed packages."""
        packaged = in_packages(site)
        if packaged:
            return printable(packaged)
        try:
            path = Path(normpath(site))  # a test may put "tests/.." on sys.path
            return printable(path.relative_to(self.root).as_posix())
        except ValueError:
            return printable(site)

    def is_of_tests(self, site: str) -> bool:
        """Return whether a place belongs to the tests, not to the program."""
        return self.is_file_of_tests(site.rpartition(":")[0])

    def is_file_of_tests(self, file: str) -> bool:
        """Return whether a file belongs to the tests."""
        return is_of_tests(self.relative(file))

    def text(self, text: str, sites: Sequence[str], *, marks: bool = True) -> str:
        """Return a text with these places shortened."""
        if sites:
            longest_first = sorted(map(re.escape, sites), key=len, reverse=True)
            show = self.site if marks else self.relative
            text = re.sub(
                f"(?:{'|'.join(longest_first)})(?!\\d)", lambda found: show(found[0]), text
            )
        return printable(text)


def check_writable(file: Path, error_of: Callable[[str], Exception]) -> None:
    """Before a run, check that the report can be written; if not, raise this error with the reason."""
    is_new = not file.exists()
    try:
        file.open("ab").close()
    except OSError as error:
        raise error_of(f"{file} cannot be written: {error.strerror}") from None
    if is_new:
        file.unlink()
