"""What can go wrong while metering.

MeteringError
├── JournalError              nothing was written; the caller's request must be refused (503)
│   ├── JournalFull           the bound of the settings or the disk is reached; shipping makes room again
│   ├── JournalBroken         the file system refused a write or a sync, or the journal is stopped
│   └── RecordTooLarge        one record above the frame limit
└── SegmentError              a file that is no segment of this format, or of a newer version
"""

from __future__ import annotations


class MeteringError(Exception):
    """Base of all errors of this package. The message is written for the person who has to act on it."""


class JournalError(MeteringError):
    pass


class JournalFull(JournalError):
    pass


class JournalBroken(JournalError):
    pass


class RecordTooLarge(JournalError):
    pass


class SegmentError(MeteringError):
    pass
