"""Where a run's files are: on this machine, or anywhere that fsspec reaches (`s3://bucket/run`)."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from msgspec import Struct

from overlaplab.errors import OverlaplabError
from overlaplab.folders import MANIFEST_NAME, is_trace_name, trace_names

STANDARD_INPUT = "-"
"""The path of a trace that comes through a pipe, and is read once."""
_VERSION_KEYS = ("etag", "mtime", "lastmodified", "last_modified", "updated", "modified", "created")
"""File systems' names for a value that changes with the file."""


class Located(Struct, frozen=True, kw_only=True):
    """One trace file, with its size and version, which show whether it has changed."""

    path: str
    """The path that the user gave, or one within the folder that the user gave."""
    name: str
    size: int
    version: str | None
    """Changes with the content; None if the file system has no such value."""
    remote: bool = False
    shared: bool = True
    """Whether other processes can read it as well."""


def sources(path: str) -> list[Located]:
    """The trace files of a folder in order of name, or the one file; raises `OverlaplabError` if there is none."""
    if path == STANDARD_INPUT:
        return [Located(path=path, name="standard input", size=0, version=None, shared=False)]
    files = _remote_sources(path) if _is_remote(path) else _local_sources(Path(path))
    if not files:
        inner = [] if _is_remote(path) else sorted(folder.name for folder in Path(path).iterdir() if folder.is_dir())
        named = f"{', '.join(inner[:3])}{' …' if inner[3:] else ''}"
        hint = f" Is one of its folders meant: {named}? `overlaplab compare` takes them all." if inner else ""
        remedy = f"Traces are files named *.json or *.json.gz, one per rank.{hint}"
        raise OverlaplabError("holds no trace", path=path, remedy=remedy)
    return files


def manifest_text(path: str) -> bytes | None:
    """The run.json of a folder; None without one, or for a single file."""
    file = f"{path.rstrip('/')}/{MANIFEST_NAME}"
    if _is_remote(path):
        with _one_line(file):
            fs, inner = _file_system(file)
            return bytes(fs.cat_file(inner)) if fs.isfile(inner) else None
    local = Path(path) / MANIFEST_NAME
    with _one_line(file):
        if not Path(path).is_dir() or not local.exists():
            return None
        if local.is_file():
            return local.read_bytes()
    raise OverlaplabError("not a file", path=file, remedy="Remove it to open the traces without it.")


@contextmanager
def stream(path: str) -> Iterator[BinaryIO | None]:
    """The bytes of a remote file, or of standard input; None for a file on this machine."""
    if not _is_remote(path):
        yield sys.stdin.buffer if path == STANDARD_INPUT else None
        return
    with _one_line(path):
        fs, inner = _file_system(path)
        with fs.open(inner, "rb") as file:
            yield file


@contextmanager
def local_copy(path: str) -> Iterator[Path]:
    """The file on this machine: itself, or a temporary copy for the length of the context."""
    if not _is_remote(path):
        yield Path(path)
        return
    with tempfile.TemporaryDirectory(prefix="overlaplab-") as folder:
        copy = Path(folder) / path.rstrip("/").rpartition("/")[2]
        with _one_line(path):
            fs, inner = _file_system(path)
            fs.get_file(inner, str(copy))
        try:
            yield copy
        except OverlaplabError as error:
            raise OverlaplabError(str(error).replace(str(copy), path)) from None


def _is_remote(path: str) -> bool:
    return "://" in path


def _local_sources(path: Path) -> list[Located]:
    with _one_line(str(path)):
        if not path.exists():
            raise OverlaplabError("no such file or directory", path=path)
        if not path.is_dir():
            return [_local_source(path)]
        names = trace_names([file.name for file in path.iterdir() if file.is_file()])
        return [_local_source(path / name) for name in sorted(names)]


def _local_source(file: Path) -> Located:
    status = file.stat()
    return Located(path=str(file), name=file.name, size=status.st_size, version=str(status.st_mtime_ns))


def _remote_sources(path: str) -> list[Located]:
    with _one_line(path):
        fs, inner = _file_system(path)
        shared = "memory" not in _protocols(fs)
        if fs.isdir(inner):
            listed = [about for about in fs.ls(inner, detail=True) if about.get("type") != "directory"]
            base = f"{path.rstrip('/')}/"
        else:
            listed, base = [fs.info(inner)], path.rstrip("/").rpartition("/")[0] + "/"
    named = {str(about["name"]).rstrip("/").rpartition("/")[2]: about for about in listed}
    return [
        Located(
            path=base + name,
            name=name,
            size=int(about.get("size") or 0),
            version=_version(about),
            remote=True,
            shared=shared,
        )
        for name, about in sorted(named.items(), key=lambda item: item[0])
        if is_trace_name(name) or base + name == path
    ]


def _version(about: Mapping[str, Any]) -> str | None:
    versions = [str(value) for key, value in about.items() if key.lower() in _VERSION_KEYS and value is not None]
    return " ".join(versions) or None


def _file_system(path: str) -> tuple[Any, str]:
    import fsspec  # slow to import, and seldom needed

    fs, inner = fsspec.core.url_to_fs(path)
    return fs, str(inner)


def _protocols(fs: Any) -> tuple[str, ...]:
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)


@contextmanager
def _one_line(path: str) -> Iterator[None]:
    """Turn any error of a file system, each of which raises its own types, into one line with the path."""
    try:
        yield
    except OverlaplabError:
        raise
    except ImportError as error:
        scheme = path.partition("://")[0].rpartition("::")[2]
        package = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "az": "adlfs", "abfs": "adlfs"}
        remedy = f"Install it with: pip install {package.get(scheme, 'the package named above')}."
        raise OverlaplabError(f"{scheme}:// is not available here ({error})", path=path, remedy=remedy) from None
    except FileNotFoundError:
        raise OverlaplabError("no such file or directory", path=path) from None
    except OSError as error:
        raise OverlaplabError(error.strerror or str(error), path=path) from None
    except Exception as error:
        if not _is_remote(path):
            raise
        what = f"cannot be read ({type(error).__name__}: {str(error) or os.strerror(5)})"
        raise OverlaplabError(what, path=path, remedy="Check the address and your credentials.") from None
