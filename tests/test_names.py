"""One name, one thing: two modules do not define a top-level name for different things."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import kbatch

PACKAGE = Path(kbatch.__file__).parent
_CYTHON = re.compile(
    r"(?:cdef|cpdef|ctypedef|def|class)\s+(?:packed |inline |api |public )*(?:(?:struct|enum|class|union)\s+)?"
    r"(?:[\w\*\[\]:,]+\s+\**)*?(\w+)\s*(?:\(|:|$|=)"
    r"|(\w+) = namedtuple\("
)

# Names that several modules define on purpose, each with its reason.
SAME_THING = {
    "add_parser": "every module of a command defines its flags and help under this name",
    "run": "every module of a command defines its action under this name",
    "_DESCRIPTION": "the help text of a command",
    "_EPILOG": "the examples in the help of a command",
    "_STATUSES": "the exit statuses in the help of a command",
    "Fault": "errors.Fault is the twin of the enum in kernels/wire.pxd; a test compares them",
    "CRC_START": "the kernels' twin of the constant in format.py",
    "CRC_START_LEGACY": "the kernels' twin of the constant in format.py",
    "T": "a type variable",
    "_NAMES": "the public names of a package, by module",
    "TYPE_CHECKING": "the modules that handle signals before anything else do not wait for the import of typing",
    "murmur2": "broker.partitioner.murmur2 is the public function for one key; the kernel of this name computes it",
}


def definitions() -> dict[str, set[str]]:
    """Return the modules that define each top-level name; the files of one kernel count as one module."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted(PACKAGE.rglob("*.py")):
        module = path.relative_to(PACKAGE).as_posix()
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
                found[node.name].add(module)
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    if isinstance(target, ast.Name):
                        found[target.id].add(module)
    for path in sorted([*PACKAGE.rglob("*.pyx"), *PACKAGE.rglob("*.pxd")]):
        module = path.relative_to(PACKAGE).with_suffix("").as_posix()
        for line in path.read_text().splitlines():
            if (match := _CYTHON.match(line)) and match[1] != "enum":
                found[match[1] or match[2]].add(module)
    return found


def test_no_two_modules_define_the_same_name() -> None:
    conflicts = {
        name: sorted(modules)
        for name, modules in definitions().items()
        if len(modules) > 1 and not name.startswith("__") and name not in SAME_THING
    }
    assert not conflicts, f"rename all but one definition: {conflicts}"
