"""The topic settings that a broker applies to produced batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kbatch.arguments import check_fields, check_types
from kbatch.batches.codecs import parse_codec
from kbatch.format import INT32_MAX, INT64_MAX, Codec, TimestampType
from kbatch.public_names import public_in
from kbatch.quantities import size_between
from kbatch.write.batch_layout import check_range

__all__ = ["TopicConfig"]


@public_in("kbatch")
@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """The topic settings that a broker applies to produced batches, with Kafka's defaults.

    Parameters
    ----------
    max_message_bytes : int or str
        ``max.message.bytes``: the largest batch, as stored, in bytes.
    segment_bytes : int or str
        ``segment.bytes``: the largest segment, and so the largest append, in bytes.
    compression_type : {"producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"}
        ``compression.type``: "producer" keeps the codec of each batch.
    compression_level : int, optional
        ``compression.gzip.level``, ``compression.lz4.level`` or ``compression.zstd.level``; see `kbatch.encode`.
    compacted : bool
        Whether ``cleanup.policy`` contains "compact", so that every record needs a key.
    timestamp_type : kbatch.TimestampType
        ``message.timestamp.type``.
    timestamp_before_max_ms, timestamp_after_max_ms : int
        ``message.timestamp.before.max.ms`` and ``message.timestamp.after.max.ms``: how far a record's timestamp may
        differ from the broker's clock. The default of the second is one hour since Kafka 4.0, and was unlimited before.
    magic : {2, 1, 0}
        The format that is stored: ``message.format.version``. It is always 2 since Kafka 4.0.
    converting : bool
        Whether batches of another magic are accepted and converted, as by brokers before Kafka 4.0. Otherwise they are
        refused with INVALID_RECORD.

    Raises
    ------
    ValueError, TypeError
        If a broker does not accept one of the settings.

    Examples
    --------
    >>> import kbatch
    >>> kbatch.TopicConfig(compacted=True).max_message_bytes
    1048588
    """

    max_message_bytes: int = 1_048_588
    segment_bytes: int = 1 << 30
    compression_type: Literal["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"] = "producer"
    compression_level: int | None = None
    compacted: bool = False
    timestamp_type: TimestampType = TimestampType.CREATE_TIME
    timestamp_before_max_ms: int = INT64_MAX
    timestamp_after_max_ms: int = 3_600_000
    magic: int = 2
    converting: bool = False

    def __post_init__(self) -> None:
        for name, minimum in (("max_message_bytes", 0), ("segment_bytes", 1)):
            object.__setattr__(self, name, size_between(name, getattr(self, name), minimum, INT32_MAX))
        check_fields(self)
        check_range("timestamp_before_max_ms", self.timestamp_before_max_ms, 0, INT64_MAX)
        check_range("timestamp_after_max_ms", self.timestamp_after_max_ms, 0, INT64_MAX)
        check_range("magic", self.magic, 0, 2)
        if not isinstance(self.timestamp_type, int) or self.timestamp_type not in (0, 1):
            raise ValueError(f"timestamp_type must be CREATE_TIME or LOG_APPEND_TIME, got {self.timestamp_type!r}")
        target = self.codec_of(Codec.NONE)
        if self.compression_level is not None and target != Codec.NONE:
            check_range("compression_level", self.compression_level, -131072, 22)
            parse_codec(f"{self.compression_type}:{self.compression_level}")
        if target == Codec.ZSTD and self.magic < 2:
            raise ValueError(f"zstd needs magic 2, got magic {self.magic}")

    def codec_of(self, source: int) -> Codec:
        """Return the codec that a batch of codec `source` is stored with."""
        check_types(TopicConfig.codec_of, locals())
        if self.compression_type == "producer":
            if source not in Codec.__members__.values():
                raise ValueError(f"source must be the number of a codec, 0 to 4, got {source}")
            return Codec(source)
        if self.compression_type not in ("uncompressed", "gzip", "snappy", "lz4", "zstd"):
            raise ValueError(
                "compression_type must be 'producer', 'uncompressed', 'gzip', 'snappy', 'lz4' or 'zstd', got "
                f"{self.compression_type!r}"
            )
        return parse_codec(self.compression_type)[0]
