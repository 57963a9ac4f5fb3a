"""A broker's log directories: names, segments, index files, seeking, tables of bounded size."""

from kbatch.log.logs import Log, find_logs
from kbatch.log.segment import Segment, Tail

__all__ = ["Log", "Segment", "Tail", "find_logs"]
