"""The machine and the versions of a measurement."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

LIBRARIES = ("sa-doclock", "SQLAlchemy", "psycopg", "PyMySQL", "Django", "peewee")


def one_line() -> str:
    return (
        f"SQLAlchemy {version('SQLAlchemy')}, Python {platform.python_version()}, "
        f"{os.cpu_count()} cores; ratios are medians [95 % interval]"
    )


def described() -> dict[str, str]:
    """Return cores, CPU, RAM, OS, Python and libraries."""
    return {
        "cores": str(os.cpu_count()),
        "CPU": _cpu(),
        "RAM": _ram(),
        "OS": _os(),
        "Python": f"{platform.python_implementation()} {platform.python_version()}",
        **{name: found for name in LIBRARIES if (found := _version(name))},
    }


def load() -> str:
    """Return the load average of the last minute."""
    return f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "not known"


def _cpu() -> str:
    try:
        from cpuinfo import get_cpu_info  # noqa: PLC0415  # from the dependency group "bench"
    except ImportError:
        return platform.processor() or platform.machine()
    return str(get_cpu_info().get("brand_raw") or platform.machine())


def _ram() -> str:
    if not hasattr(os, "sysconf") or "SC_PHYS_PAGES" not in os.sysconf_names:
        return "not known"
    return f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB"


def _os() -> str:
    kernel = f"{platform.system()} {platform.release()}"
    if Path("/etc/os-release").exists():
        return f"{platform.freedesktop_os_release().get('PRETTY_NAME', '')}, {kernel}"
    return kernel


def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None
