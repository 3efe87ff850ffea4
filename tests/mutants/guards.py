"""The list: every guard there is, in the order of the rooms of the house."""

from __future__ import annotations

from tests.mutants.attack_guards import ATTACKS
from tests.mutants.blob_guards import BLOBS
from tests.mutants.cel_guards import CEL
from tests.mutants.decision_guards import ENGINE_DECISIONS, EXPRESSION_DECISIONS, KERNEL_DECISIONS
from tests.mutants.egress_guards import CALLS, EGRESS
from tests.mutants.engine_guards import ENGINE
from tests.mutants.guard import Guard
from tests.mutants.isolation_guards import ISOLATION
from tests.mutants.jsonpath_guards import JSONPATH
from tests.mutants.kernel_guards import KERNEL
from tests.mutants.mail_guards import CONNECTIONS, MAIL
from tests.mutants.model_guards import MODELS
from tests.mutants.pipeline_guards import PIPELINES
from tests.mutants.python_guards import FRONT, HOSTILE, PYTHON
from tests.mutants.shell_guards import COMMANDS
from tests.mutants.sql_guards import STATEMENTS
from tests.mutants.sqlite_guards import SQLITE
from tests.mutants.store_guards import STORE
from tests.mutants.template_guards import TEMPLATES
from tests.mutants.upkeep_guards import UPKEEP
from tests.mutants.voice_guards import EARS, NODE_TYPES, SECRECY, VOICES
from tests.mutants.worker_guards import WORKERS
from tests.mutants.world_guards import WORLD

GUARDS: tuple[Guard, ...] = (
    *STORE,
    *SQLITE,
    *KERNEL,
    *KERNEL_DECISIONS,
    *WORLD,
    *ENGINE,
    *ENGINE_DECISIONS,
    *WORKERS,
    *HOSTILE,
    *UPKEEP,
    *VOICES,
    *BLOBS,
    *EXPRESSION_DECISIONS,
    *CEL,
    *JSONPATH,
    *TEMPLATES,
    *ISOLATION,
    *ATTACKS,
    *EGRESS,
    *SECRECY,
    *CONNECTIONS,
    *CALLS,
    *MODELS,
    *PIPELINES,
    *STATEMENTS,
    *PYTHON,
    *COMMANDS,
    *MAIL,
    *NODE_TYPES,
    *EARS,
    *FRONT,
)

GUARDS_MIN = 500
"""A list that has shrunk below this is not the list any more."""
