"""The text that PyPI shows: the README in the built package.

``python -m tests.docs.package FILE...`` checks a wheel or an sdist; it needs no other package.
"""

from __future__ import annotations

import email
import sys
import tarfile
import zipfile
from pathlib import Path

from tests.docs.pages import links


def description(path: Path) -> str:
    """Return the description in the metadata of a wheel or an sdist."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            (name,) = (n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
            metadata = wheel.read(name)
    else:
        with tarfile.open(path) as sdist:
            (name,) = (n for n in sdist.getnames() if n.count("/") == 1 and n.endswith("/PKG-INFO"))
            member = sdist.extractfile(name)
            assert member is not None
            metadata = member.read()
    # Not get_payload() of the bytes, which would decode them as ASCII
    return str(email.message_from_string(metadata.decode("utf-8")).get_payload())


def relative_links(text: str) -> list[str]:
    """Return the link targets that are broken on PyPI's page, which has no other files."""
    return [link for link in links(text) if not link.startswith("https://")]


def main(paths: list[str]) -> int:
    """Print the faults of the files; return the exit status."""
    status = 0
    for path in paths:
        text = description(Path(path))
        wrong = relative_links(text) if links(text) else ["NO LINK AT ALL"]
        if wrong:
            print(f"{path}: its README has relative links: {', '.join(wrong)}", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
