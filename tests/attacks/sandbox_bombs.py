"""Attacks in Python that stay inside of the interpreter, to use up time or memory."""

from __future__ import annotations

from tests.attacks.attack import Attack, Ending, Failed, Gives, group
from tidemill.expressions.scope import Json

TIMEOUT_MS = 150
"""Most bombs would go on for ever, so the less time they have the better."""

NAUGHT = Failed("condition_failed")


def code(text: str, **more: Json) -> Json:
    """Write a condition."""
    return {"type": "python_sandbox", "code": text, "timeout_ms": TIMEOUT_MS, **more}


def body(lines: str, **more: Json) -> Json:
    """Write a condition whose function has these lines."""
    indented = "\n".join(f"    {line}" for line in lines.split("\n"))
    return code(f"def evaluate(output, context):\n{indented}", **more)


def bodies(name: str, ending: Ending, *lines: str) -> list[Attack]:
    """Write attacks that end in the same way."""
    return group(name, ending, *(body(each_) for each_ in lines))


LOOPS = [
    *bodies(
        "loop-bomb",
        NAUGHT,
        "while True:\n    pass",
        "while 1: 1\nreturn True",
        "for a in range(10**18): pass\nreturn True",
        "x = [a for a in range(10**18) if a < 0]\nreturn True",
        "return sum(range(10**12)) > 0 and all(a >= 0 for a in range(10**12))",
        "return any(a < 0 for a in range(10**12))",
        "import itertools\nfor a in itertools.count(): pass",
        "import itertools\nfor a in itertools.cycle([1]): pass",
        "import itertools\nreturn len(list(itertools.product(range(100), repeat=9))) > 0",
        "import itertools\nreturn len(list(itertools.permutations(range(20)))) > 0",
        "def f(): return f()\nreturn f()",
        "f = lambda g: g(g)\nreturn f(f)",
        "def f(n): return f(n - 1) + f(n - 1) if n else 1\nreturn f(60) > 0",
        "x = []\nx.append(x)\nwhile x: x = x[0]\nreturn True",
        "x = [1]\nfor a in x: x.append(a)\nreturn True",
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        "try:\n    while True: pass\nfinally:\n    while True: pass",
        "try:\n    while True: pass\nexcept TimeoutError:\n    return True",
        "import math\nreturn math.factorial(10**7) > 0",
        "return 10**10**7 > 0",
        "return 2**10**9 > 0",
        "return 1 << 10**12 > 0",
        "return pow(3, 10**8) > 0",
        "x = 3\nfor a in range(100): x = x * x\nreturn x > 0",
        "return int('9' * 10**7) > 0",
        "return str(10**100000) != ''",
        "return len(str(2**2000000)) > 0",
        "return hash((1,) * 10**9) > 0",
        "return sorted(range(10**9, 0, -1))[0] == 1",
        "import hashlib\nreturn hashlib.sha256(b'x' * 10**10).hexdigest() != ''",
        "import decimal\nreturn decimal.Decimal(10) ** decimal.Decimal(10**9) > 0",
        "import decimal\ndecimal.getcontext().prec = 10**9\nreturn decimal.Decimal(1) / 3 > 0",
        "import json\nreturn json.loads('[' * 10**6) == 1",
        "x = []\nfor a in range(50): x = [x, x]\ny = []\nfor a in range(50): y = [y, y]\nreturn x == y and 1",
        "import time\ntime.sleep(10**6)\nreturn 1",
        "import asyncio\nasyncio.run(asyncio.sleep(10**6))\nreturn 1",
        "import unicodedata\nreturn len(unicodedata.normalize('NFKD', '\\ufdfa' * 10**7)) > 0",
    ),
    *bodies(
        "no-bomb",
        Gives(False),
        "import re\nreturn re.fullmatch('(a+)+', 'a' * 40 + 'b') is not None",
        "import re\nreturn re.search('(a|aa)+$', 'a' * 60 + 'b') is not None",
        "import re\nreturn re.match('(.*)*x', 'a' * 5000) is not None",
        "import copy\nx = []\nfor a in range(50): x = [x, x]\nreturn copy.deepcopy(x) == 1",
        "x = []\nfor a in range(10**5): x = [x]\nreturn str(x) == 1",
    ),
]

GROWTH = bodies(
    "memory-bomb",
    NAUGHT,
    "return len('x' * 10**10) > 0",
    "return len([0] * 10**10) > 0",
    "return len((0,) * 10**10) > 0",
    "return len(b'x' * 10**10) > 0",
    "return len(bytearray(10**10)) > 0",
    "return len(bytes(10**10)) > 0",
    "return len(list(range(10**9))) > 0",
    "return len(set(range(10**9))) > 0",
    "return len({a: a for a in range(10**9)}) > 0",
    "x = 'x'\nwhile True: x += x",
    "x = [0]\nwhile True: x += x",
    "x = []\nwhile True: x.append('y' * 1000)",
    "x = {}\nfor a in range(10**9): x[a] = [a]",
    "return len('x'.center(10**10)) > 0",
    "return len('x'.ljust(10**10)) > 0",
    "return len('x'.zfill(10**10)) > 0",
    "return len('\\t'.expandtabs(10**10)) > 0",
    "return len(('x' * 10**5).replace('x', 'y' * 10**6)) > 0",
    "return len(('y' * 10**6).join(['x'] * 10**5)) > 0",
    "return len('%999999999d' % 1) > 0",
    "return len('{:999999999}'.format(1)) > 0",
    "return len(f'{1:999999999}') > 0",
    "return len(f'{1.5:.999999999f}') > 0",
    "return len(repr('x' * 10**8) * 100) > 0",
    "print('x' * 10**10)\nreturn True",
    "while True: print('x' * 10**6)",
    "raise ValueError('x' * 10**8)",
    "import base64\nreturn len(base64.b64encode(b'x' * 10**9)) > 0",
    "import collections\nreturn len(collections.deque(range(10**9))) > 0",
    "import json\nreturn len(json.dumps('x' * 10**8, indent=10**6)) > 0",
)
