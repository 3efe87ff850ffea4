"""The run's last step: its outputs, rendered by a worker as the document declares them.

It is no attempt: it has no node, is not retried after a failure, and fails the run as a whole.
"""

from __future__ import annotations

from tidemill.blobs.contract import Blobs
from tidemill.blobs.payloads import encode_value
from tidemill.engine.binaries import check_files
from tidemill.engine.failures import failed_by
from tidemill.engine.runs import Entry
from tidemill.engine.scopes import RUN_READER, needed_for_outputs, scope_of
from tidemill.engine.values import Values
from tidemill.errors import Unavailable
from tidemill.kernel.commands import Done, Failed
from tidemill.kernel.delays import LOST_IN_A_ROW_MAX
from tidemill.kernel.events import INLINE_BYTES_MAX, BlobRef, Error
from tidemill.stores.contract import Lease


async def outputs_of(entry: Entry, lease: Lease, values: Values, blobs: Blobs) -> Done | Failed:
    """Render the outputs of a run. Raises `Unavailable` when a value they need cannot be loaded or stored."""
    if lease.expired >= LOST_IN_A_ROW_MAX:
        message = f"{LOST_IN_A_ROW_MAX} workers in a row were lost while they rendered it"
        return Failed(error=Error("worker_killer", message))
    workflow, state, tenant = entry.flow.workflow, entry.state, lease.stream.tenant
    fetched = await values.fetch(tenant, needed_for_outputs(workflow, state))
    try:
        scope = scope_of(workflow, state, lease.stream.key, RUN_READER, fetched)
        text = encode_value(entry.flow.outputs.render(scope))
        await check_files(blobs, tenant, text)
        if len(text) <= INLINE_BYTES_MAX:
            return Done(output=text, size=len(text))
        return Done(output=BlobRef(await blobs.put(tenant, text), len(text)), size=len(text))
    except Unavailable:
        raise
    except Exception as error:
        return failed_by(error)
