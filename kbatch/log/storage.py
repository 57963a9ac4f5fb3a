"""Access to the files of a log: local files, and files in a filesystem of pyarrow or fsspec by URL.

A path is a local path, or a URL such as ``s3://bucket/logs``. All reads of a log use this module: one listing per
directory, small files as a whole, and ranges of segments.
"""

from __future__ import annotations

import functools
import json
import mmap
import os
import re
import stat
import threading
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

import numpy as np
import numpy.typing as npt

from kbatch.batches.framing import byte_array
from kbatch.errors import LogDirectoryError, MissingDependencyError
from kbatch.extras import require
from kbatch.kernels.buffers import allocate
from kbatch.tuning import MIN_REQUEST

if TYPE_CHECKING:
    import pyarrow.fs

__all__ = [
    "LOCAL",
    "Entry",
    "LocalFile",
    "RemoteFile",
    "Storage",
    "bytes_read",
    "filesystem",
    "identity",
    "is_url",
    "locate",
]

_URL = re.compile(r"(?P<scheme>[a-zA-Z][a-zA-Z0-9+.-]+)://(?P<authority>[^/]*)(?P<path>.*)", re.DOTALL)
_FILE_URL = re.compile(r"file:(?://(?=/))?")
# s3a and s3n are Hadoop's names.
_S3_SCHEMES = ("s3", "s3a", "s3n")
_ARROW_SCHEMES = (*_S3_SCHEMES, "gs", "gcs", "hdfs", "viewfs", "abfs", "abfss")
_S3_FLAGS = {"anonymous", "force_virtual_addressing", "background_writes", "allow_bucket_creation"}
_S3_NUMBERS = {"request_timeout", "connect_timeout"}
# Limit on mapped windows; beyond it windows are read. Each mapping in Python holds a file descriptor, and a table holds
# its window, so a caller that keeps many tables would otherwise run out of descriptors.
MOST_MAPPED = 64
_mapped: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()

_lock = threading.Lock()
_bytes_read = 0


def bytes_read() -> int:
    """Return the number of bytes that this process has read from files through kbatch, including index files.

    A mapped window counts with its whole size.

    Examples
    --------
    >>> import kbatch
    >>> before = bytes_read()
    >>> kbatch.Log("tests/golden/logs/codec-none-0").end_offset
    3160
    >>> bytes_read() > before
    True
    """
    return _bytes_read


def _count(size: int) -> None:
    global _bytes_read
    with _lock:
        _bytes_read += size


def is_url(path: str) -> bool:
    """Whether a path is a URL of a filesystem other than the local one."""
    found = _URL.match(path)
    return found is not None and found["scheme"].lower() != "file"


def filesystem(url: str, options: Mapping[str, str] | None = None) -> tuple[pyarrow.fs.FileSystem, str]:
    """Return the filesystem of a path or URL, and the path in it.

    Parameters
    ----------
    url : str
        A local path or a URL. ``s3://`` (also ``s3a://``), ``gs://``, ``hdfs://`` and ``abfs://`` use pyarrow's
        filesystems, any other scheme uses fsspec.
    options : mapping of str to str, optional
        For ``s3``: the arguments of `pyarrow.fs.S3FileSystem`, such as ``access_key``, ``secret_key``, ``region`` and
        ``endpoint_override`` (``http://host:port`` or ``host:port``). For pyarrow's other filesystems: the query
        parameters of `pyarrow.fs.FileSystem.from_uri`. For fsspec: the arguments of its filesystem; ``true``,
        ``false`` and JSON objects are parsed. ``implementation=fsspec`` selects fsspec for schemes that both support.

    Raises
    ------
    LogDirectoryError
        If the scheme is unknown, or the filesystem can't be reached.
    ValueError
        If an option is unknown.
    MissingDependencyError
        If pyarrow, or the package that fsspec needs for the scheme, is not installed.

    Notes
    -----
    By default the library looks up the credentials, for S3 in the environment, ``~/.aws`` and the machine's role.
    Credentials in the URL are rejected, because tables and errors contain the URL. A filesystem is created once per
    process and set of options.
    """
    given = _texts(options)
    found = _URL.match(url)
    if found is None or found["scheme"].lower() == "file":
        fs = _pyarrow_fs()
        return fs.LocalFileSystem(), os.path.abspath(_FILE_URL.sub("", url, count=1))
    scheme, authority, path = found["scheme"].lower(), found["authority"], found["path"]
    if not authority and scheme in _S3_SCHEMES:
        raise LogDirectoryError(f"{url}: no bucket in this URL", source=url)
    if scheme in _S3_SCHEMES and ("@" in authority or "?" in url):
        raise ValueError(
            f"{scheme}://{authority.rpartition('@')[2]}...: credentials and parameters are not allowed in the URL, "
            "because tables and errors contain it; pass them as storage options"
        )
    # A process that was forked must not use its parent's connections.
    made = _filesystem(scheme, authority, tuple(sorted(given.items())), os.getpid())
    handler = getattr(made, "handler", None)
    if handler is not None:
        return made, str(handler.fs._strip_protocol(url))
    if scheme in ("hdfs", "viewfs"):
        return made, path or "/"
    bucket = authority.partition("@")[0] if scheme.startswith("abfs") else authority.rpartition("@")[2]
    return made, (bucket + path).rstrip("/")


@functools.lru_cache(maxsize=32)
def _filesystem(scheme: str, authority: str, options: tuple[tuple[str, str], ...], _pid: int) -> pyarrow.fs.FileSystem:
    fs = _pyarrow_fs()
    given: dict[str, Any] = dict(options)
    implementation = given.pop("implementation", "pyarrow" if scheme in _ARROW_SCHEMES else "fsspec")
    if implementation not in ("pyarrow", "fsspec"):
        raise ValueError(f"storage option implementation must be pyarrow or fsspec, got {implementation!r}")
    root = f"{scheme}://{authority}"
    try:
        if implementation == "fsspec":
            return _fsspec(fs, "s3" if scheme == "s3n" else scheme, root, given)
        if scheme in _S3_SCHEMES:
            return _s3(fs, authority, given)
        query = f"?{urlencode(given)}" if given else ""
        return fs.FileSystem.from_uri(f"{root}/{query}")[0]
    except TypeError as error:
        raise ValueError(f"{root}: storage options {', '.join(given)}: {error}") from error
    except (OSError, _arrow_error()) as error:
        raise LogDirectoryError(f"{root}: {_one_line(error)}", source=root) from error


def _texts(options: Mapping[str, object] | None) -> dict[str, str]:
    """Return the values of options as text, as on a command line and in Spark."""
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in (options or {}).items()
        if value is not None
    }


def _arrow_error() -> type[Exception]:
    """Return the exception of pyarrow for a URL or an option that it does not accept."""
    import pyarrow

    error: type[Exception] = pyarrow.ArrowException
    return error


def _pyarrow_fs() -> Any:
    return require("pyarrow.fs", "arrow", "reading from a URL")


def _s3(fs: Any, bucket: str, given: dict[str, Any]) -> Any:
    arguments: dict[str, Any] = {}
    for name, value in given.items():
        if name in _S3_FLAGS:
            arguments[name] = _flag_option(name, value)
        elif name in _S3_NUMBERS:
            arguments[name] = _number_option(name, value)
        else:
            arguments[name] = value
    endpoint = re.fullmatch(r"(https?)://(.*?)/*", arguments.get("endpoint_override", ""))
    if endpoint is not None:
        arguments["scheme"], arguments["endpoint_override"] = endpoint.groups()
    # An unreachable endpoint raises an error within seconds.
    arguments.setdefault("connect_timeout", 5.0)
    if "endpoint_override" in arguments:
        arguments.setdefault("region", "us-east-1")
    made = fs.S3FileSystem(**arguments)
    if "region" in arguments or any(os.environ.get(name) for name in ("AWS_REGION", "AWS_ENDPOINT_URL")):
        return made
    return fs.S3FileSystem(**arguments, region=fs.resolve_s3_region(bucket))


def _fsspec(fs: Any, scheme: str, root: str, given: dict[str, Any]) -> Any:
    fsspec = require("fsspec", "fsspec", f"{root}: reading this URL")
    arguments: dict[str, Any] = {}
    for name, value in given.items():
        text = value.strip()
        if text.lower() in ("true", "false"):
            arguments[name] = text.lower() == "true"
        elif text.startswith("{"):
            arguments[name] = _object_option(name, text)
        else:
            arguments[name] = value
    try:
        return fs.PyFileSystem(fs.FSSpecHandler(fsspec.filesystem(scheme, **arguments)))
    except ImportError as error:
        raise MissingDependencyError(f"{root}: {error}") from error
    except ValueError as error:
        raise LogDirectoryError(f"{root}: {error}", source=root) from error


def _flag_option(name: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise ValueError(f"storage option {name} must be true or false, got {value!r}")
    return value.lower() == "true"


def _number_option(name: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise ValueError(f"storage option {name} must be a number, got {value!r}") from None


def _object_option(name: str, value: str) -> object:
    try:
        return json.loads(value)
    except ValueError as error:
        # The value isn't shown: it may hold secrets.
        raise ValueError(f"storage option {name} starts with '{{' but is not a JSON object: {error}") from None


def _one_line(error: BaseException) -> str:
    """Return the message of a library's error on one line of bounded length."""
    message = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    text = " ".join(message.split())
    return text if len(text) <= 400 else text[:400] + "..."


class Entry(NamedTuple):
    """A file or directory in a listing.

    Attributes
    ----------
    is_directory : bool
    size : int or None
        Bytes of a file; None if the listing has no sizes, as for local directories.
    mtime : int
        Modification time, or 0 if unknown; only for comparison.
    """

    is_directory: bool
    size: int | None = None
    mtime: int = 0


class Storage:
    """The operations on a filesystem that logs need. Picklable: it holds only options.

    Parameters
    ----------
    options : mapping of str to str, optional
        As for `filesystem`; ignored for local files.
    remote : bool
        Whether the paths are URLs.
    """

    __slots__ = ("options", "remote")

    def __init__(self, options: Mapping[str, str] | None = None, *, remote: bool = False) -> None:
        self.options = _texts(options)
        self.remote = remote

    def __repr__(self) -> str:
        # Values may be secrets.
        return f"<kbatch Storage {'remote' if self.remote else 'local'}, options {', '.join(self.options) or 'none'}>"

    def join(self, directory: str, name: str) -> str:
        """Return the path of a file in a directory."""
        return f"{directory.rstrip('/')}/{name}" if self.remote else os.path.join(directory, name)

    def absolute(self, path: str) -> str:
        """Return an absolute path, which contains the names of all its directories."""
        return path.rstrip("/") if self.remote else os.path.abspath(path)

    def find(self, path: str) -> Entry | None:
        """Return the entry of a path, or None if it does not exist.

        Raises
        ------
        LogDirectoryError
            If a filesystem can't be reached.
        """
        if not self.remote:
            try:
                found = os.stat(path)
            except (OSError, ValueError):
                return None
            return Entry(stat.S_ISDIR(found.st_mode), found.st_size, found.st_mtime_ns)
        fs, inner = _current(path, self.options)
        try:
            info = fs.get_file_info(inner)
        except Exception as error:
            raise _unreachable(path, error) from error
        return _entry(info) if info.type.name != "NotFound" else None

    def list(self, directory: str) -> dict[str, Entry]:
        """List a directory: the entries by name.

        Raises
        ------
        LogDirectoryError
            If the directory can't be listed, or the filesystem can't be reached. Local errors are `OSError`.
        """
        if not self.remote:
            with os.scandir(directory) as found:
                return {entry.name: Entry(_is_directory(entry)) for entry in found}
        fs, inner = _current(directory, self.options)
        try:
            infos = fs.get_file_info(_pyarrow_fs().FileSelector(inner, recursive=False))
        except (FileNotFoundError, NotADirectoryError):
            raise
        except Exception as error:
            raise _unreachable(directory, error) from error
        # An object store may have an object with the name of the directory.
        return {info.base_name: _entry(info) for info in infos if info.base_name}

    def read(self, path: str, limit: int, *, size: int | None = None) -> tuple[bytes, int]:
        """Return the first `limit` bytes of a file, and its size.

        Raises
        ------
        OSError
            If it can't be read; `FileNotFoundError` if it does not exist.
        """
        if not self.remote:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                data = file.read(limit)
            _count(len(data))
            return data, size
        with RemoteFile(path, self, size) as remote:
            data = remote.read(0, min(limit, remote.size))
            return data, remote.size

    def open(self, path: str, size: int | None = None) -> LocalFile | RemoteFile:
        """Open a file for reading windows.

        Parameters
        ----------
        path : str
        size : int, optional
            The size, if known; saves a request for a remote file.

        Raises
        ------
        OSError
            If it can't be opened.
        """
        return RemoteFile(path, self, size) if self.remote else LocalFile(path)


LOCAL = Storage()


def locate(path: str | os.PathLike[str], options: Mapping[str, str] | None = None) -> tuple[Storage, str]:
    """Return the storage of a path or URL, and the path for its methods."""
    text = os.fspath(path)
    if is_url(text):
        return Storage(options, remote=True), text
    return LOCAL, _FILE_URL.sub("", text, count=1) if text.startswith("file:/") else text


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        # A broken symbolic link.
        return False


def _current(path: str, options: Mapping[str, str]) -> tuple[pyarrow.fs.FileSystem, str]:
    """Return the filesystem without cached listings: fsspec caches them, but logs grow."""
    fs, inner = filesystem(path, options)
    handler = getattr(fs, "handler", None)
    if handler is not None:
        handler.fs.invalidate_cache()
    return fs, inner


def identity(path: str) -> str:
    """Return a canonical path or URL, equal for all paths or URLs of one file."""
    return re.sub(r"^s3[an]://", "s3://", path.rstrip("/")) if is_url(path) else os.path.realpath(path)


def _entry(info: Any) -> Entry:
    return Entry(info.type.name == "Directory", info.size, info.mtime_ns or 0)


def _unreachable(url: str, error: Exception) -> LogDirectoryError:
    return LogDirectoryError(f"{url}: can't be reached: {_one_line(error)}", source=url)


class LocalFile:
    """An open file of this machine."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115 (closed by close)
        self.size = os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        """Close the file. Windows remain valid."""
        self._file.close()

    def window(self, start: int, stop: int, *, mapped: bool) -> npt.NDArray[np.uint8]:
        """Return the bytes from `start` up to `stop`; fewer where the file ends.

        Raises
        ------
        ValueError
            If the file is too short to be mapped up to `stop`.
        """
        if not mapped or len(_mapped) >= MOST_MAPPED:
            return self._read(start, stop - start)
        aligned = start - start % mmap.ALLOCATIONGRANULARITY
        window = mmap.mmap(self._file.fileno(), stop - aligned, access=mmap.ACCESS_READ, offset=aligned)
        _count(stop - start)
        _mapped.add(window)
        return byte_array(window)[start - aligned :]

    def _read(self, start: int, size: int) -> npt.NDArray[np.uint8]:
        block = allocate(size)
        view = memoryview(block)
        self._file.seek(start)
        done = 0
        while done < size:
            n = self._file.readinto(view[done:])
            if not n:
                break
            done += n
        _count(done)
        return byte_array(view[:done])


class RemoteFile:
    """A file in a remote filesystem, read in ranges; overlapping windows do not read a byte twice.

    The last window is kept, since a walk over headers requests windows within it or next to it.
    """

    def __init__(self, path: str, storage: Storage, size: int | None = None) -> None:
        self.path = path
        fs, self._inner = filesystem(path, storage.options)
        handler = getattr(fs, "handler", None)
        # fsspec's file objects read ahead by megabytes; cat_file does not.
        self._ranges = None if handler is None else handler.fs
        self._file: Any = None
        self._start = 0
        self._held = byte_array(b"")
        try:
            if self._ranges is None:
                self._file = fs.open_input_file(self._inner)
                self.size: int = self._file.size()
            else:
                self.size = self._ranges.size(self._inner) if size is None else size
        except FileNotFoundError as error:
            raise FileNotFoundError(2, "no such object", path) from error
        except Exception as error:
            raise OSError(5, _one_line(error), path) from error

    def __enter__(self) -> RemoteFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. Windows remain valid."""
        if self._file is not None:
            self._file.close()
        self._held = byte_array(b"")

    def read(self, start: int, size: int) -> bytes:
        """Read a range with one request; fewer bytes at the end of the file.

        Raises
        ------
        OSError
        """
        if size <= 0:
            return b""
        try:
            if self._ranges is None:
                data: bytes = self._file.read_at(size, start)
            else:
                data = self._ranges.cat_file(self._inner, start=start, end=start + size)
        except FileNotFoundError as error:
            raise FileNotFoundError(2, "no such object", self.path) from error
        except Exception as error:
            # S3's error if an object has become shorter than `start`.
            if re.search(r"416|InvalidRange|not satisfiable", str(error), re.IGNORECASE):
                return b""
            raise OSError(5, _one_line(error), self.path) from error
        _count(len(data))
        return data

    def window(self, start: int, stop: int, *, mapped: bool = False) -> npt.NDArray[np.uint8]:
        """Return the bytes from `start` up to `stop`; fewer where the file ends."""
        end = self._start + len(self._held)
        if not (self._start <= start and stop <= end):
            begin = end if self._start <= start < end else start
            new = byte_array(self.read(begin, max(min(max(stop - begin, MIN_REQUEST), self.size - begin), 0)))
            kept = self._held[start - self._start :] if begin > start else byte_array(b"")
            self._held = np.concatenate([kept, new]) if len(kept) else new
            self._held.flags.writeable = False
            self._start = start
        return self._held[start - self._start : stop - self._start]
