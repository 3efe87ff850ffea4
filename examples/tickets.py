"""A language model in Python: it sorts messages, and makes tickets of bug reports that fit a dataclass.

The model is scripted, so that the example runs offline; for a real one, replace `provider` and `answers` by `model`
and `api_key`.

tidemill run examples/tickets.py
tidemill run examples/tickets.py --input message="I was charged twice"
"""

from __future__ import annotations

from dataclasses import dataclass

import tidemill

LABELS = {"billing": "invoices, payments, refunds", "bug": "something does not work", "other": "anything else"}
ANSWERS = {"charged": "billing", "does nothing": "bug", ".": "other"}
TOPICS = {words: {"label": label, "confidence": 0.9} for words, label in ANSWERS.items()}
TICKET = {
    "type": "object",
    "properties": {"title": {"type": "string"}, "severity": {"enum": ["low", "high"]}},
    "required": ["title", "severity"],
    "additionalProperties": False,
}
# The first answer does not fit the schema, so the node asks again.
TICKETS = [{"title": "Export is broken", "severity": "blocker"}, {"title": "Export is broken", "severity": "high"}]


@dataclass
class Ticket:
    title: str
    severity: str


@tidemill.task
def file(ticket: Ticket) -> str:
    return f"ticket ({ticket.severity}): {ticket.title}"


@tidemill.task
def forward(topic: str) -> str:
    return f"forwarded to the people for {topic}"


# `node` adds a node of any type. Calls of models are charged and recorded: a retry of a later step asks nothing again.
@tidemill.workflow
def tickets(message: str = "The export button does nothing!") -> str:
    sort = {"provider": "scripted", "answers": TOPICS, "labels": LABELS, "text": message}
    topic = tidemill.node("classify", sort, id="topic")
    with tidemill.when(topic.label == "bug"):
        ask = {"provider": "scripted", "answers": TICKETS, "prompt": f"Make a ticket of: {message}", "schema": TICKET}
        filed = file(tidemill.node("llm", ask, id="ticket").value)
    with tidemill.otherwise():
        forwarded = forward(topic.label)
    return tidemill.default(filed, forwarded)
