"""The compiler is the judge of the random documents, and the translation is the judge of the compiler."""

from __future__ import annotations

import random

import pytest

from tests.model.documents import random_document, translate
from tidemill.kernel.compile.compiler import compile_document
from tidemill.kernel.model import NodeType

TYPES = {name: [NodeType(name=name)] for name in ("value", "fail", "sleep", "python")}


@pytest.mark.parametrize("batch", range(8))
def test_the_compiler_and_the_translation_agree(batch: int) -> None:
    for seed in range(batch * 50, (batch + 1) * 50):
        rng = random.Random(seed)
        document = random_document(rng, rng.randint(1, 25))
        assert compile_document(document, TYPES).workflow == translate(document), seed
