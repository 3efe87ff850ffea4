"""What a blob refers to: the one rule by which the collector spares other blobs, and the archive takes them along.

An address counts wherever it stands in a record or in a JSON value, whether it describes a file or is a digest alone,
since handlers read by either. Bytes that do not begin like JSON refer to nothing, and are not read to their end.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import cast

from tidemill.blobs.contract import DIGEST_LENGTH

_MAY_REFER = re.compile(rb'\s*[\[{"]')
"""How JSON begins that can hold a text."""
_OVERLAP = DIGEST_LENGTH + len('"$blob":""')
"""What is looked at twice, so that nothing is overlooked that is cut in two: an address, with the key before it."""


async def referring_texts(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The bytes of a blob in which addresses may stand, bit by bit."""
    rest, first = b"", True
    async with aclosing(cast(AsyncGenerator[bytes, None], chunks)) as opened:
        async for chunk in opened:
            if first and not _MAY_REFER.match(chunk):
                return
            text, first = rest + chunk, False
            yield text
            rest = text[-_OVERLAP:]
