"""From a state to what a handler is given, and what is left of its secrets afterwards."""

from __future__ import annotations

from typing import Any

import msgspec

from tidemill.blobs.payloads import decode_value, encode_value
from tidemill.engine.scopes import Upstream
from tidemill.engine.values import Fetched, text_of
from tidemill.expressions.failure import ExpressionError
from tidemill.expressions.schema import Schema
from tidemill.expressions.scope import Scope
from tidemill.expressions.templates import Template
from tidemill.handlers.contract import Checkpointer, NodeContext, Pause, Reader, Skip, Voice
from tidemill.kernel.activation import Activation
from tidemill.kernel.commands import Failed
from tidemill.kernel.jobs import Task
from tidemill.kernel.model import Node, Workflow
from tidemill.kernel.state import State
from tidemill.security.masking import NO_MASK, Mask
from tidemill.security.secrets import Disclosed


def rendered(template: Template, scope: Scope, schema: Schema) -> Any:
    """A config with its values filled in, checked against its type's schema.

    Rendering shares structure with what it read; the handler gets a copy that it may do with as it likes.
    """
    config = decode_value(encode_value(template.render(scope)))
    problems = () if schema.accepts(config) else schema.problems(config, "")
    if problems:
        hints = dict.fromkeys(problem.hint for problem in problems if problem.hint)
        message = "; ".join(problem.sentence for problem in problems)
        raise ExpressionError(code="config_invalid", message=message, hint="; ".join(hints))
    return config


def context_of(
    workflow: Workflow,
    state: State,
    node: Node,
    *,
    run_id: str,
    task: Task,
    act: Activation,
    fetched: Fetched,
    config: Any,
    secrets: Disclosed,
    voice: Voice,
    checkpoint: Checkpointer,
    read: Reader,
) -> NodeContext:
    """What an attempt at an activation is given."""
    inputs = state.inputs
    context = NodeContext(
        run_id,
        task.node,
        task.visit,
        task.index,
        attempt_of(act),
        config,
        Upstream(workflow, state, node, fetched),
        state.deadline_ms,
        checkpoint=checkpoint,
        read=read,
        given=lambda: decode_value(text_of(inputs, fetched)),
        voice=voice,
        secrets=secrets,
    )
    # What few attempts have is filled in afterwards: every keyword of the call above costs, for all of them.
    if node.delivery == "at_most_once":
        context.at_most_once = True
    if act.checkpoint is not None:
        context.last_checkpoint = decode_value(text_of(act.checkpoint, fetched))
    if act.recall and act.resumed is not None:
        context.resumed = decode_value(text_of(act.resumed, fetched))
    return context


def attempt_of(act: Activation) -> int:
    """The number of the attempt that is being made."""
    return act.attempt if act.running else act.attempt + 1


def encoded(value: Any, mask: Mask) -> bytes:
    """The JSON text of a value without secrets, whatever kind of object it is. Raises NotJson."""
    text = encode_value(value)
    return text if mask is NO_MASK or not mask.is_in(text) else encode_value(mask.value(decode_value(text)))


def hidden(ended: Pause | Skip, mask: Mask) -> Pause | Skip:
    """What a handler asks for instead of a result, without secrets."""
    if not mask or not mask.is_in(msgspec.json.encode(ended)):
        return ended
    shown: Pause | Skip = msgspec.convert(mask.value(msgspec.to_builtins(ended)), type(ended))
    return shown


def masked(failed: Failed, mask: Mask) -> Failed:
    """A failure without the secrets that were disclosed to the attempt."""
    error = failed.error
    hidden = msgspec.structs.replace(
        error,
        code=mask.text(error.code),
        message=mask.text(error.message),
        type=mask.text(error.type),
        hint=mask.text(error.hint),
        causes=tuple(mask.text(cause) for cause in error.causes),
        traceback=mask.text(error.traceback),
    )
    return msgspec.structs.replace(failed, error=hidden)
