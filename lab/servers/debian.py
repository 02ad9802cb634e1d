"""A package of Debian or Ubuntu and all its dependencies, unpacked into a folder, not installed.

Needs apt and dpkg, not root. Here apt uses separate lists and a separate package state, in which nothing
is installed. So its solver names all dependencies, including the C library, and a server from another
suite runs beside the machine's own libraries. apt verifies every package as usual.
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Sequence
from pathlib import Path

from lab.running.progress import progress, say
from lab.servers.cache import cached
from lab.servers.downloads import Download, downloading
from lab.servers.model import UnavailableError
from lab.servers.process import run

_PATIENCE = 1800  # seconds for one download

#: Suites of Ubuntu, which keeps the versions that Debian never released.
UBUNTU = ("jammy", "noble", "resolute")
_UBUNTU_MIRROR = "http://archive.ubuntu.com/ubuntu"


def unpacked(package: str, suite: str, *, licence: str) -> Path:
    """Return a folder with ``package`` of this Debian suite and its dependencies, unpacked.

    :param licence: the package's licence, to show to the user; all of Debian's main archive is free software.
    """
    _own_suite(package)
    key = f"{package}-{suite}-{platform.machine()}"
    return cached(key, lambda root: _unpack((package,), suite, licence, root))


def distribution_of(suite: str) -> str:
    return "Ubuntu" if suite in UBUNTU else "Debian"


def unpacked_alone(*packages: str, licence: str, suite: str | None = None) -> Path:
    """Return a folder with these packages of this Debian, without their dependencies.

    :param licence: the packages' licence, to show to the user.
    :param suite: a suite other than the machine's own.
    """
    own_suite = _own_suite(packages[0])
    suite = suite or own_suite
    key = f"{packages[0]}-alone-{suite}-{platform.machine()}"
    return cached(key, lambda root: _unpack(packages, suite, licence, root, alone=True))


def source(package: str, suite: str, *, licence: str) -> Path:
    """Return a folder with the sources of a package of this Debian suite, without Debian's changes.

    :param licence: the package's licence, to show to the user.
    """
    _own_suite(package)
    return cached(
        f"{package}-source-{suite}", lambda root: _unpack_source(package, suite, licence, root)
    )


def command(root: Path, program: str) -> list[str]:
    """Return the command that runs a program from such a folder with the folder's own C library."""
    loaders = [*root.glob("usr/lib/*/ld-linux*.so.*"), *root.glob("lib/*/ld-linux*.so.*")]
    loader = loaders[0]
    triplet = loader.parent.name
    libraries = f"{root}/usr/lib/{triplet}:{root}/lib/{triplet}:{root}/usr/lib"
    return [str(loader), "--library-path", libraries, str(root / program)]


def _own_suite(package: str) -> str:
    if not shutil.which("apt-get") or platform.freedesktop_os_release().get("ID") != "debian":
        msg = f"{package} can only be unpacked on Debian"
        raise UnavailableError(msg)
    return platform.freedesktop_os_release().get("VERSION_CODENAME", "sid")


def _unpack(
    packages: Sequence[str], suite: str, licence: str, root: Path, *, alone: bool = False
) -> None:
    apt_get = _own_apt_get(suite, root)
    archives = root.parent / "apt" / "archives"
    get = [*apt_get, *(["download"] if alone else ["--download-only", "install"]), *packages]
    download = _announced(get, packages, suite, licence)
    with downloading(download, folder=archives):
        run(["env", f"--chdir={archives}", *get], seconds=_PATIENCE)
    for archive in sorted(archives.glob("*.deb")):
        run(["dpkg-deb", "--extract", str(archive), str(root)])


def _unpack_source(package: str, suite: str, licence: str, root: Path) -> None:
    apt_get = _own_apt_get(suite, root, kinds="deb-src")
    archives = root.parent / "apt" / "archives"
    get = [*apt_get, "source", "--download-only", package]
    with downloading(_announced(get, [package], suite, licence), folder=archives):
        run(["env", f"--chdir={archives}", *get], seconds=_PATIENCE)
    (archive,) = archives.glob("*.orig.tar.*[!c]")  # not its signature, .asc
    run(["tar", "--extract", "--strip-components=1", f"--file={archive}", f"--directory={root}"])


def _announced(get: list[str], packages: Sequence[str], suite: str, licence: str) -> Download:
    """Ask apt for the size and source of the download."""
    # One line for each package, such as: 'http://...deb' mysql_9.7_amd64.deb 12345 SHA256:...
    found = run([*get, "--print-uris"]).splitlines()
    sizes = [int(line.split()[2]) for line in found if line.startswith("'")]
    more = len(sizes) - len(packages)
    what = " ".join(packages) + (f" and {more} packages that it needs" if more else "")
    licence += ", and other free licences" if more else ""
    return Download(what, f"{distribution_of(suite)} {suite}", sum(sizes), licence)


def _own_apt_get(suite: str, root: Path, kinds: str = "deb") -> list[str]:
    """Return the command, with fresh lists and a state in which nothing is installed."""
    apt = root.parent / "apt"
    for folder in ("lists/partial", "archives/partial"):
        (apt / folder).mkdir(parents=True)
    (apt / "status").touch()
    (apt / "list.sources").write_text(
        _source(suite).replace("Types: deb\n", f"Types: {kinds}\n"), encoding="utf-8"
    )
    options = {
        "Dir::State": apt,
        "Dir::State::status": apt / "status",
        "Dir::Cache": apt,
        "Dir::Etc::SourceList": apt / "list.sources",
        "Dir::Etc::SourceParts": "-",
        "APT::Sandbox::User": "root",  # the account _apt cannot write into this folder
        "APT::Install-Recommends": "false",
        "Acquire::Languages": "none",  # no translated descriptions
        "Acquire::Retries": "3",
    }
    apt_get = ["apt-get", "--quiet", "--assume-yes"]
    apt_get += [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
    where = f"{distribution_of(suite)} {suite}"
    say(f"Downloading the list of packages, from {where}: about 10 MB")
    with progress(lambda: f"the list of packages of {where}"):
        run([*apt_get, "update"], seconds=_PATIENCE)
    return apt_get


def _source(suite: str) -> str:
    """Write the apt source of another suite; for Debian, on this machine's mirror."""
    if suite in UBUNTU:
        keys = unpacked_alone("ubuntu-keyring", licence="GPL-2.0", suite="sid")
        keyring = str(keys / "usr/share/keyrings/ubuntu-archive-keyring.gpg")
        return _deb822(_UBUNTU_MIRROR, f"{suite} {suite}-updates", "main universe", keyring)
    own = platform.freedesktop_os_release().get("VERSION_CODENAME", "sid")
    listed = run(
        [
            *("apt-get", "indextargets", "--no-release-info"),
            *("--format", "$(RELEASE) $(COMPONENT) $(REPO_URI)", "Identifier: Packages"),
        ]
    )
    for line in listed.splitlines():
        release, component, mirror = line.split(maxsplit=2)
        if (release, component) == (own, "main"):
            keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
            return _deb822(mirror, suite, "main", keyring)
    msg = f"apt knows no mirror for Debian {own}"
    raise UnavailableError(msg)


def _deb822(mirror: str, suites: str, components: str, keyring: str) -> str:
    return (
        f"Types: deb\nURIs: {mirror}\nSuites: {suites}\nComponents: {components}\n"
        f"Signed-By: {keyring}\n"
    )
