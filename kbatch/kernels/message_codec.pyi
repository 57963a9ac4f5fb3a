from types import EllipsisType
from typing import Any

KINDS: dict[str, int]
DEPTH_LIMIT: int

class Field:
    name: str
    kind: int
    tag: int
    min_size: int
    def __init__(
        self,
        name: str,
        kind: int,
        compact: bool,
        nullable: bool,
        tag: int,
        default: object | EllipsisType,
        structure: Structure | None,
        element: Field | None,
        min_size: int,
    ) -> None: ...

class Structure:
    cls: type
    fields: tuple[Field, ...]
    tagged: tuple[Field, ...]
    version: int
    def __init__(
        self,
        cls: type,
        fields: tuple[Field, ...],
        tagged: tuple[Field, ...],
        absent: tuple[Field, ...],
        flexible: bool,
        version: int,
    ) -> None: ...

def decode_structure(
    plan: Structure, view: memoryview, position: int, whole: bool, limit: int
) -> tuple[Any, int, int]: ...
def encode_structures(planned: list[tuple[Structure, Any]], framed: bool) -> list[bytearray | memoryview]: ...
