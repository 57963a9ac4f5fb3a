"""Access to the files of a log: local files, and files in a filesystem of pyarrow or fsspec by URL.

A path is a local path, or a URL such as ``s3://bucket/logs``. All reads of a log use this module: one listing per
directory, small files as a whole, and ranges of segments.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import urlencode

import numpy as np
import numpy.typing as npt

from kbatch.batches.framing import byte_array
from kbatch.batches.regular_files import open_directory, regular_size
from kbatch.errors import LogDirectoryError, MissingDependencyError
from kbatch.escaping import one_line
from kbatch.extras import require
from kbatch.log.store.local_files import LocalFile, count_bytes

if TYPE_CHECKING:
    import pyarrow.fs

__all__ = [
    "CLUSTER_SCHEME",
    "LOCAL",
    "Entry",
    "RemoteFile",
    "Storage",
    "absolute",
    "each_once",
    "filesystem",
    "identity",
    "is_cluster_url",
    "is_url",
    "locate",
]

KeyedT = TypeVar("KeyedT")

# Smallest request to a remote file, in bytes: the request itself costs more than the transfer of this many bytes.
MIN_REQUEST = 64 << 10

# The scheme of the URL of a cluster of brokers.
CLUSTER_SCHEME = "kafka://"
_URL = re.compile(r"(?P<scheme>[a-zA-Z][a-zA-Z0-9+.-]+)://(?P<authority>[^/]*)(?P<path>.*)", re.DOTALL)
_FILE_URL = re.compile(r"file:(?://(?=/))?")
# s3a and s3n are Hadoop's names.
_S3_SCHEMES = ("s3", "s3a", "s3n")
_ARROW_SCHEMES = (*_S3_SCHEMES, "gs", "gcs", "hdfs", "viewfs", "abfs", "abfss")
_S3_FLAGS = {"anonymous", "force_virtual_addressing", "background_writes", "allow_bucket_creation"}
_S3_NUMBERS = {"request_timeout", "connect_timeout"}
# The storage option that allows symbolic links inside local directories.
_FOLLOW_LINKS = "follow_links"


def is_cluster_url(path: str) -> bool:
    """Whether a text is the URL of a Kafka cluster, ``kafka://HOST:PORT[,HOST:PORT]``."""
    return path[: len(CLUSTER_SCHEME)].lower() == CLUSTER_SCHEME


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
    given.pop(_FOLLOW_LINKS, None)
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
        raise LogDirectoryError(f"{root}: {_short_reason(error)}", source=root) from error


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


def _short_reason(error: BaseException) -> str:
    """Return the message of a library's error on one line of bounded length."""
    text = one_line((error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__)
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
    """The operations on a filesystem that logs need. Picklable: it holds only options and a path.

    Parameters
    ----------
    options : mapping of str to str, optional
        As for `filesystem`. For local files only ``follow_links`` is used: whether symbolic links inside directories
        are followed, ``false`` by default. Brokers do not create links, and a link in an untrusted directory could lead
        to any file of this machine.
    remote : bool
        Whether the paths are URLs.
    named : str, optional
        The path that the caller named. It and its directories may be symbolic links.
    """

    __slots__ = ("follow_links", "named", "options", "remote")

    def __init__(
        self, options: Mapping[str, str] | None = None, *, remote: bool = False, named: str | None = None
    ) -> None:
        self.options = _texts(options)
        self.follow_links = _flag_option(_FOLLOW_LINKS, self.options.get(_FOLLOW_LINKS, "false"))
        self.remote = remote
        self.named = named

    def __repr__(self) -> str:
        # Values may be secrets.
        return f"<kbatch Storage {'remote' if self.remote else 'local'}, options {', '.join(self.options) or 'none'}>"

    def _follows(self, path: str) -> bool:
        """Whether a local path may be a symbolic link: by the option, or as part of the path that the caller named."""
        if self.follow_links or path == self.named:
            return True
        return self.named is not None and f"{os.path.abspath(self.named)}/".startswith(f"{os.path.abspath(path)}/")

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
                found = os.stat(path, follow_symlinks=self._follows(path))
            except (OSError, ValueError):
                return None
            return Entry(stat.S_ISDIR(found.st_mode), found.st_size, found.st_mtime_ns)
        fs, inner = _current(path, self.options)
        try:
            info = fs.get_file_info(inner)
        except Exception as error:
            raise _unreachable(path, error) from error
        return _entry(info) if info.type.name != "NotFound" else None

    def size(self, path: str) -> int:
        """Return the size of a file.

        Raises
        ------
        OSError
            If it does not exist, or is a local file that `open` refuses.
        LogDirectoryError
            If a filesystem can't be reached.
        """
        if not self.remote:
            return regular_size(path, follow=self._follows(path))
        found = self.find(path)
        if found is None or found.is_directory:
            raise FileNotFoundError(errno.ENOENT, "no such object", path)
        return found.size or 0

    def list(self, directory: str) -> dict[str, Entry]:
        """List a directory: the entries by name.

        Raises
        ------
        LogDirectoryError
            If a filesystem can't be reached. Local errors are `OSError`, also for a symbolic link.
        """
        if not self.remote:
            descriptor = open_directory(directory, follow=self._follows(directory))
            try:
                with os.scandir(descriptor) as found:
                    return {entry.name: Entry(_is_directory(entry)) for entry in found}
            finally:
                os.close(descriptor)
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
            If it can't be read, is truncated meanwhile, or is a local file that `open` refuses; `FileNotFoundError` if
            it does not exist.
        """
        if not self.remote:
            with contextlib.closing(LocalFile(path, follow=self._follows(path))) as file:
                size = file.size
                data = file.window(0, min(limit, size)).tobytes()
        else:
            with RemoteFile(path, self, size) as remote:
                size = remote.size
                data = remote.read(0, min(limit, size))
        if len(data) < min(limit, size):
            raise OSError(errno.EIO, f"it was truncated to {len(data)} bytes while it was read", path)
        return data, size

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
            If it can't be opened. Local files must be regular files, and no symbolic links unless `follow_links` is set
            or the caller named the path.
        """
        return RemoteFile(path, self, size) if self.remote else LocalFile(path, follow=self._follows(path))


LOCAL = Storage()


def absolute(path: str) -> str:
    """Return a path that means the same file in a process with another working directory; URLs are unchanged."""
    return path if is_url(path) or path.startswith("file:/") else os.path.abspath(path)


def locate(path: str | os.PathLike[str], options: Mapping[str, str] | None = None) -> tuple[Storage, str]:
    """Return the storage of a path or URL that the caller named, and the path for its methods."""
    if not isinstance(path, str | os.PathLike) or not isinstance(text := os.fspath(path), str):
        hint = "; kbatch.decode reads batches from a buffer" if isinstance(path, bytes | bytearray | memoryview) else ""
        raise TypeError(f"a path must be str or os.PathLike, got {type(path).__name__}{hint}")
    if not text or "\0" in text:
        problem = "contains a null byte" if text else "is empty"
        raise LogDirectoryError(f"the path {text!r} {problem}", source=text)
    if is_cluster_url(text):
        raise LogDirectoryError(
            "a kafka:// URL names a cluster, which kbatch.consume, scan_logs, export and follow read, as their only "
            "source; here a log directory, a topic-partition directory or a '.log' file is needed, such as "
            "kbatch backup writes"
        )
    if is_url(text):
        return Storage(options, remote=True), text
    text = _FILE_URL.sub("", text, count=1) if text.startswith("file:/") else text
    return Storage(options, named=text), text


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


def each_once(found: Iterable[KeyedT], key: Callable[[KeyedT], str]) -> list[KeyedT]:
    """Return the first object for each key, such as the `identity` of its path, since given paths may overlap."""
    once: dict[str, KeyedT] = {}
    for each in found:
        once.setdefault(key(each), each)
    return list(once.values())


def _entry(info: Any) -> Entry:
    return Entry(info.type.name == "Directory", info.size, info.mtime_ns or 0)


def _unreachable(url: str, error: Exception) -> LogDirectoryError:
    return LogDirectoryError(f"{url}: can't be reached: {_short_reason(error)}", source=url)


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
            raise OSError(5, _short_reason(error), path) from error

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
            raise OSError(5, _short_reason(error), self.path) from error
        count_bytes(len(data))
        return data

    def window(self, start: int, stop: int, capacity: int = 0) -> npt.NDArray[np.uint8]:
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
