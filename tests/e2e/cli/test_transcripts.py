"""What every command prints: one file of transcripts per command in `golden/`, compared byte by byte.

`TIDEMILL_GOLDEN=update` writes the files anew; read the difference before you commit it. Every row starts from its own
copy of the same folder (see `world`), so rows do not see one another, and the clock stands still.
"""

from __future__ import annotations

import difflib
import io
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest

from tests.e2e.cli.golden_world import Clock, forget, prepare
from tests.fixtures.command_line import InProcessCli, process
from tidemill.cli.main import call

GOLDEN = Path(__file__).parent / "golden"
UPDATING = os.environ.get("TIDEMILL_GOLDEN") == "update"
DAYS = 40
NOTE = "sha256:b77235f69d6fd6357fc38462c46a98ce21f4a4ce4908062add21fa11086fff77"


class Row(NamedTuple):
    """One transcript: a command, what is done before it, and what it reads from standard input."""

    argv: str
    before: tuple[str, ...] = ()
    stdin: str = ""
    real: bool = False
    """Whether it runs as a process of its own."""
    world: str = "today"
    """Or "archived": 40 days later, when what had ended is in the archive."""


def both(argv: str, *before: str) -> list[Row]:
    """A command as text and with `--json`."""
    return [Row(argv, before), Row(f"{argv} --json", before)]


def archived(*lines: str) -> list[Row]:
    return [Row(line, world="archived") for line in lines]


def rows(*lines: str) -> list[Row]:
    return [Row(line) for line in lines]


SCORED = ("publish credit.yaml", "start credit --key c-1 -i least=80", "run credit.yaml --resume c-1 -q")
REVIEWED = tuple(command.replace("=80", "=84") for command in SCORED)
"""A run with a loop and a branch, whose last node is skipped or happens."""
DISCARD = "dlq discard pay-1 transfer --reason 'too old' --as ada"
PUT = "blobs put note.txt"
SCHEDULED = "schedules create often hello --every 15m --catch-up all --description 'for the board' --as ada"
LONG = "sha256:" + "a" * 64

TABLE: dict[str, list[Row]] = {
    "root": [
        *rows("", "-h", "--version", "--nope", "frobnicate", "frobnicate --json", "rns", "vaildate x"),
        *rows("runs", "approvals", "dlq", "archive", "blobs", "nodes", "workflows", "--version extra"),
        *rows("--json", "runs --nope", "runs lst", "runs frobnicate --json", "run -x", "dlq lsit", "nodes shwo x"),
        Row("--help", real=True),
        Row("frobnicate", real=True),
    ],
    "version": rows("version", "version extra"),
    "validate": [
        *both("validate hello.yaml"),
        *both("validate bad.yaml"),
        *both("validate broken.yaml"),
        *rows("validate warned.yaml", "validate showcase.yaml", "validate list.yaml", "validate empty.yaml"),
        *both("validate helo.yaml"),
        *rows("validate", "validate --json", "validate .", "validate hello.yaml extra", "validate shouting.yaml"),
        *rows("validate shouting.yaml --app world_steps.py", "validate hello.yaml --app nope.py"),
        *rows("validate hello.yaml --app nope_module", "validate hello.yaml --app empty_app.py"),
        *rows("validate hello.yaml --app broken_app.py", "validate hello.yaml --app world_steps:nope"),
        Row("validate -", stdin="name: x\nnodes: [{id: a, type: value}]\n"),
        Row("validate - --json", stdin='{"name": '),
        Row("validate hello.yaml", real=True),
    ],
    "graph": rows(
        "graph hello.yaml",
        "graph hello.yaml --format text",
        "graph loops.yaml --format text",
        "graph branches.yaml --format mermaid",
        "graph showcase.yaml --format text",
        "graph order.yaml --format text",
        "graph order.yaml --format mermaid",
        "graph bad.yaml",
        "graph hello.yaml --format png",
        "graph hello.yaml --format",
        "graph hello.yaml --json",
        "graph hello.yaml -o hello.svg",
        "graph hello.yaml -o no/where.svg",
        "graph",
        "graph nope.yaml",
    ),
    "export": rows(
        "export hello.yaml",
        "export hello.yaml --as json",
        "export branches.yaml --as python",
        "export loops.yaml --as python",
        "export bad.yaml",
        "export hello.yaml --as xml",
        "export",
        "export nope.yaml",
        "export nope.py",
    ),
    "eval": [
        *both("eval -c 'output.n > 1' --output '{\"n\": 2}'"),
        *both("eval -c condition.json --output '{\"n\": 1}'"),
        *both("eval -c 'output.n >' --output '{\"n\": 2}'"),
        *rows("eval", "eval -c 'output.n > 1' --output nope", "eval -c 'output.n > 1' --output @nope.json"),
        *rows("eval -c 'inputs.a == fetch.output.b' --inputs '{\"a\": 1}' --context '{\"fetch\": {\"b\": 1}}'"),
        *rows("eval -c 'iteration > 2' --iteration 3", "eval -c true --iteration -1", "eval -c true --iteration x"),
        *rows("eval -c true --inputs '[1]'", "eval -c nope.json", "eval -c 'output.missing > 1' --output '{}'"),
        *both("eval -c composite.json --output '{\"score\": 87}' --context '{\"a\": 4}'"),
        *both("eval -c composite-bad.json --output '{' --context '[]' --inputs 3"),
        *both("eval -c composite-fails.json --output '{\"n\": 1}'"),
        *rows("eval -c output.n --output '{\"n\": 1}'", "eval -c 'ctx.nope.output > 1'", "eval -c 'nope.n > 1'"),
        *rows("eval -c 'output.n > 1'", "eval -c true --output scope.json", "eval -c @nope", "eval -c '{\"a\": '"),
        Row("eval -c 'output > 1' --output -", stdin="2"),
    ],
    "render": [
        *both("render 'Hello, {{ inputs.name }}!' --scope @scope.json"),
        *both("render @template.yaml --scope @scope.json"),
        *rows("render '{{ fetch.output.status }}' --scope @scope.json", "render", "render '{{ nope'"),
        *rows("render '{{ inputs.missing.x }}'", "render x --scope nope", "render x --scope '[1]'"),
        *rows("render @nope.yaml", "render '{{ 1 / 0 }}' --json"),
        *both("render @template-bad.json --scope '{\"secrets\": {}}'"),
        *both("render @template-fails.json --scope @scope.json"),
        *[
            Row(f"render x --scope '{scope}'")
            for scope in (
                *("{", "@nope.json", '{"nodes": []}', '{"run": 1}', '{"index": -1}', '{"iteration": true}'),
                *('{"output": 1}', '{"nodes": {"a": {"output": 1, "meta": 2}}}', '{"a": NaN}'),
            )
        ],
    ],
    "run": [
        *rows("run hello.yaml", "run hello.yaml --json", "run hello.yaml -q", "run hello.yaml -i name=Ada -q"),
        *rows("run failing.yaml", "run failing.yaml --json", "run failing.yaml --quiet", "run loops.yaml"),
        *rows("run shouting.yaml --app world_steps.py -q", "run shouting.yaml", "run warned.yaml"),
        *rows("run asking.yaml -i n=1 -i nn=2"),
        Row("run hello.yaml --resume h-2", ("runs fork hi-1 --node shout --key h-2",)),
        *rows("run asking.yaml", "run asking.yaml -i n", "run asking.yaml -i n=many --json", "run asking.yaml -i @no"),
        *rows("run asking.yaml -i one -i =two -i @three.json", "run asking.yaml -i n=1 --store nonsense"),
        *rows("run hello.yaml --stream greet --json", "run hello.yaml --stream greet", "run hello.yaml --resume nope"),
        *rows("run hello.yaml --resume pay-1", "run hello.yaml --resume hi-1", "run bad.yaml", "run bad.yaml --json"),
        *rows("run", "run --nope x.yaml", "run --sotre x hello.yaml", "run hello.yaml extra", "run hello.yaml --store"),
        *rows("run nope.yaml", "run hello.yaml --store memory:// -q", "run hello.yaml --app nope.py"),
        *rows("run warned.yaml --json", "run hello.yaml --stream nope", "run hello.yaml --stream greet -q"),
        *rows("run asking.yaml -i n=1 --store ''", "run asking.yaml -i n=1 --store oracle://nowhere"),
        Row("run - -q", stdin="name: x\nnodes: [{id: a, type: value, config: 7}]\n"),
        Row("run hello.yaml", real=True),
    ],
    "publish": [
        *both("publish loops.yaml -m 'the first' --as ada"),
        *both("publish hello.yaml"),
        Row("publish hello.yaml", ("workflows patch hello --set /description=later",)),
        *both("publish bad.yaml"),
        *rows(
            "publish warned.yaml --author ben", "publish", "publish nope.yaml", "publish hello.yaml --store memory://"
        ),
        *rows("publish shouting.yaml", "publish shouting.yaml --app world_steps.py", "publish hello.yaml --store ://"),
    ],
    "start": [
        *both("start hello -i name=Cy --key hi-3 -l team=ops --correlation c-1 --as cy"),
        *both("start nope"),
        *rows("start payment:stable --key k", "start payment@1 --key k", "start payment@9", "start payment:nope"),
        Row("runs show hi-3", ("start hello -i name=Cy --key hi-3 -l team=ops --correlation c-1 --as cy",)),
        *rows(
            "start hello --key hi-4 -i nam=Cy",
            "start hello --key hi-1",
            "start pay-1 --key pay-1",
            "start hello -l nothing",
            "start hello -i x",
        ),
        *rows("start", "start hello --store sqlite:///nope.db", "start hello --store memory://", "start payment@x"),
    ],
    "worker": rows(
        "worker --concurrency 0",
        "worker --concurrency x",
        "worker --grace -1",
        "worker --heartbeat 0",
        "worker --dead-after 0.5",
        "worker --store memory://",
        "worker --store nonsense",
        "worker --heartbeat 10 --dead-after 5",
        "worker --queues , --json",
        "worker --queues a,,b",
        "worker --queues ''",
        "worker --dead-after inf",
        "worker --dead-after nan --json",
        "worker --app nope.py",
        "worker --retention-days -1",
        "worker extra",
    ),
    "migrate": [
        *both("migrate"),
        *both("migrate --dry-run"),
        *rows("migrate --store sqlite:///nope.db", "migrate --store memory://", "migrate extra"),
    ],
    "why": [
        *[row for run in ("hi-1", "pay-1", "rel-1", "rel-2", "rel-3", "rel-4") for row in both(f"why {run}")],
        *both("why pay-1 transfer"),
        *both("why rel-1 ship"),
        *[Row(f"why c-1 {node}", SCORED) for node in ("ask", "score", "refuse", "review --json")],
        Row("why c-1 review", REVIEWED),
        *rows("why pay-1 book", "why rel-2 review", "why nope", "why nope --json", "why pay-1 nope", "why"),
        *rows("why hi-1 --store sqlite:///nope.db", "why hi-1 --store memory://"),
    ],
    "doctor": [
        *both("doctor"),
        *rows("doctor --store sqlite:///nope.db", "doctor --store sqlite:///nope.db --json", "doctor extra"),
        *rows("doctor --store sqlite:///note.txt", "doctor --store memory://"),
    ],
    "verify-log": [
        *both("verify-log"),
        *both("verify-log hi-1 pay-1"),
        *rows("verify-log nope", "verify-log --sample 0", "verify-log --sample x", "verify-log --sample 50"),
    ],
    "reindex": [*both("reindex"), *both("reindex --dry-run"), *rows("reindex extra", "reindex --store sqlite:///n.db")],
    "schedules": [
        *rows("schedules", "schedules list", "schedules show nope", "schedules create often hello", "schedules creat"),
        *both("schedules create often hello --every 15m -l team=a"),
        *both("schedules create early hello --cron '0 6 * * 1-5' --tz Europe/Berlin --paused"),
        *both("schedules create Bad helo --cron '* * * * * *' --tz Europe/Berln --jitter x --overlap no"),
        *both("schedules list", SCHEDULED),
        *both("schedules show often", SCHEDULED),
        *both("schedules next often --count 2", SCHEDULED),
        *both("schedules pause often --reason lunch --as ada", SCHEDULED),
        *both("schedules resume often", SCHEDULED),
        *both("schedules trigger often --key now-1 --as ada", SCHEDULED),
        *both("schedules delete often", SCHEDULED),
    ],
    "runs list": [
        *both("runs list"),
        *both("runs list --status failed"),
        *both("runs list --limit 2"),
        *rows("runs list --workflow hello", "runs list -l team=ops", "runs list --term live", "runs list --term stuck"),
        *rows(
            "runs list --workflow nope", "runs list --status BROKEN", "runs list --limit 0", "runs list --limit 1001"
        ),
        *rows("runs list --limit x --json", "runs list --after nonsense", "runs list -l nothing", "runs list --term x"),
        *rows("runs list --limit", "runs list extra", "runs list --status", "runs list --limt 3"),
        *rows(
            "runs list status:failed 'started>-2h'", "runs list waiting:approval --since 2h", "runs list status:faild x"
        ),
        *rows("runs list --store sqlite:///nope.db", "runs list --store memory://"),
    ],
    "runs summary": [
        *both("runs summary"),
        *rows("runs summary status:failed", "runs summary workflow:nope", "runs summary --buckets 2"),
        *rows("runs summary statuss:failed", "runs summary --buckets 0"),
    ],
    "runs failures": [
        *both("runs failures"),
        *rows("runs failures workflow:nope", "runs failures failure:zz", "runs failures status:running"),
    ],
    "usage": [
        *both("usage"),
        *rows("usage --workflow payment", "usage --since 2020-01-01 --workflow nope", "usage --since soon", "usage x"),
    ],
    "queues": [*both("queues"), Row("queues --all"), *rows("queues --store sqlite:///nope.db", "queues extra")],
    "runs count": [
        *both("runs count status:failed"),
        *rows("runs count", "runs count statuss:failed", "runs count --since soon", "runs count --limit 3"),
    ],
    "runs show": [
        *[row for run in ("hi-1", "pay-1", "rel-1", "batch-1", "rel-3") for row in both(f"runs show {run}")],
        *both("runs show pay-1 --at 3"),
        *both("runs show nope"),
        *rows("runs show hi-2", "runs show rel-4", "runs show", "runs show --json", "runs show pay-1 --at 0"),
        *rows("runs show pay-1 --at zero", "runs show pay-1 --at 999", "runs show hi-1 hi-2", "runs show hi"),
        *rows("runs show hi-1 --store ://", "runs show hi-1 --store memory://"),
    ],
    "runs state": [
        *both("runs state pay-1 --at 4"),
        *rows("runs state pay-1", "runs state pay-1 --at x", "runs state nope --at 1"),
    ],
    "runs events": [
        *both("runs events hi-1"),
        *both("runs events rel-2 --last 3"),
        *rows("runs events pay-1", "runs events rel-3", "runs events rel-4", "runs events batch-1"),
        *rows("runs events hi-1 --limit 2", "runs events hi-1 --after 3", "runs events hi-1 --after 999"),
        *rows("runs events hi-1 --follow", "runs events hi-1 -f --json --last 2", "runs events hi-1 --live --last 1"),
        *rows("runs events nope", "runs events nope -f --json", "runs events hi-1 --after -1", "runs events"),
        Row("runs events hi-1 --last 0"),
        *both("runs events c-1", *SCORED),
        Row("runs events c-1", REVIEWED),
    ],
    "runs logs": [
        *both("runs logs talk-1"),
        *both("runs logs talk-1 talk --attempt 1 -t"),
        *rows("runs logs talk-1 nope -f --json", "runs logs talk-1 talk --attempt 2"),
        *rows("runs logs hi-1", "runs logs nope", "runs logs talk-1 nope", "runs logs talk-1 --attempt 0"),
        *rows("runs logs talk-1 --visit 2", "runs logs talk-1 --index 1", "runs logs talk-1 --follow", "runs logs"),
    ],
    "runs path": [
        *both("runs path pay-1"),
        *both("runs path rel-1 --tokens"),
        *both("runs path c-1", *SCORED),
        Row("runs path pay-1 --at 1"),
        *rows("runs path hi-1 --at 3", "runs path nope", "runs path hi-1 --tokens", "runs path"),
    ],
    "runs graph": [
        *both("runs graph pay-1"),
        *rows("runs graph rel-1", "runs graph rel-1 --at 3", "runs graph pay-1 --timeline --format text"),
        Row("runs graph c-1", SCORED),
        *rows("runs graph hi-1 -o hi.svg", "runs graph hi-1 -o hi.svg --json", "runs graph hi-1 -o hi.mmd"),
        *rows("runs graph hi-1 -o no/where.html", "runs graph nope", "runs graph nope --json", "runs graph"),
        *rows("runs graph hi-1 --format png", "runs graph hi-1 --at 99"),
    ],
    "runs why": rows("runs why pay-1", "runs why pay-1 transfer --json", "runs why nope"),
    "runs document": [*both("runs document pay-1"), *rows("runs document nope", "runs document")],
    "runs compare": [
        *both("runs compare hi-1 hi-2"),
        *both("runs compare pay-1 pay-2"),
        *rows("runs compare hi-1 hi-1", "runs compare hi-1 nope", "runs compare hi-1", "runs compare hi-1 pay-1"),
    ],
    "runs retry": [
        *both("runs retry pay-1 --reason again --as ada"),
        *rows("runs retry pay-1 --key k", "runs retry hi-1", "runs retry nope --json", "runs retry"),
        *rows("runs retry pay-1 --did-not-happen nope", "runs retry pay-1 --did-not-happen transfer"),
        Row("runs events pay-1 --last 2", ("runs retry pay-1 --reason again --as ada",)),
    ],
    "runs rewind": [
        *both("runs rewind rel-1 build"),
        *rows("runs rewind rel-1 nope", "runs rewind pay-1 receive", "runs rewind rel-1", "runs rewind nope x"),
        Row("runs events rel-1 --last 2", ("runs rewind rel-1 build --reason why --as ada",)),
    ],
    "runs cancel": [
        *both("runs cancel rel-1 --reason late --no-compensate"),
        *rows("runs cancel rel-1 --compensate", "runs cancel rel-1 --force", "runs cancel pay-1", "runs cancel nope"),
        *rows("runs cancel", "runs cancel rel-1 --frce"),
        Row("runs show rel-1", ("runs cancel rel-1 --as ada --reason late",)),
    ],
    "runs pause": [
        *both("runs pause rel-1 --reason lunch --as ada"),
        *rows("runs pause rel-3", "runs pause hi-1", "runs pause pay-1", "runs pause nope", "runs pause"),
        Row("runs events rel-1 --last 1", ("runs pause rel-1 --reason lunch --as ada",)),
    ],
    "runs resume": [
        *both("runs resume rel-3"),
        *rows("runs resume rel-1", "runs resume hi-1", "runs resume pay-1", "runs resume nope", "runs resume"),
        Row("runs events rel-3 --last 1", ("runs resume rel-3",)),
    ],
    "runs rollback": [
        *both("runs rollback undo-1 --reason wrong"),
        *rows("runs rollback hi-1", "runs rollback rel-1", "runs rollback nope", "runs rollback"),
        Row("runs events undo-1 --last 2", ("runs rollback undo-1 --reason wrong --as ada",)),
    ],
    "runs relabel": [
        *both("runs relabel hi-1 -l a=b=c --remove team"),
        *rows("runs relabel hi-1", "runs relabel hi-1 -l nothing", "runs relabel nope -l a=b", "runs relabel"),
        Row("runs events hi-1 --last 1", ("runs relabel hi-1 -l a=b --as ada",)),
        Row("runs events hi-1 --last 2", ("runs relabel hi-1 -l a=b --key k", "runs relabel hi-1 -l a=b --key k")),
    ],
    "runs signal": [
        *both('runs signal rel-2 go \'{"when": "now"}\' --key s-1 --as ada'),
        *rows("runs signal rel-2 go", "runs signal rel-2 nope", "runs signal hi-1 go", "runs signal nope go"),
        *rows("runs signal rel-2 go @nope.json", "runs signal rel-2", "runs signal rel-2 go @scope.json --key s-2"),
        Row("runs events rel-2 --last 2", ("runs signal rel-2 go hello --key s-1 --as ada",)),
        Row("runs events rel-2 --last 2 --json", ("runs signal rel-2 go @scope.json --key s-1",)),
    ],
    "runs override": [
        *both("runs override pay-1 transfer --value '{\"paid\": true}' --reason seen"),
        *rows("runs override pay-1 transfer --skip", "runs override pay-1 transfer --did-not-happen"),
        *rows("runs override pay-1 transfer", "runs override pay-1 transfer --skip --value 1", "runs override pay-1"),
        *rows("runs override pay-1 transfer --value @nope.json", "runs override pay-1 nope --skip"),
        *rows("runs override pay-1 transfer --skip --next book", "runs override pay-1 transfer --skip --visit 0"),
        *rows("runs override pay-1 transfer --skip --visit 7", "runs override pay-1 transfer --skip --item 0"),
        *rows("runs override nope x --skip", 'runs override pay-1 transfer --value \'{"a": 1, "a": 2}\' --json'),
        Row("runs show pay-1 --json", ("runs override pay-1 transfer --value null",)),
        Row("runs show pay-1", ("runs override pay-1 transfer --skip",)),
        Row("runs events pay-1 --last 3", ("runs override pay-1 transfer --value 1 --reason seen --as ada",)),
    ],
    "runs fork": [
        *both("runs fork hi-1 --key new --reason try -i name=Cy -l a=b"),
        *rows("runs fork pay-1 --node transfer --key new", "runs fork pay-1 --at 3 --key new", "runs fork nope"),
        *rows("runs fork pay-1 --node transfer --patch repair.json --key new", "runs fork pay-1 --at 0", "runs fork"),
        *rows("runs fork pay-1 --node nope", "runs fork pay-1 --patch nope.json", "runs fork hi-1 --at 2 --node a"),
        *rows(
            "runs fork hi-1 --key hi-2",
            "runs fork hi-1 --node shout --key new -i nmae=Cy",
            "runs fork pay-1 --patch bad-patch.json",
        ),
        Row("runs show new", ("runs fork pay-1 --node transfer --key new --as ada",)),
    ],
    "runs patch": [
        *both("runs patch pay-1 repair.json --dry-run"),
        *both("runs patch pay-1 repair.json --retry -m mended --as ada"),
        *rows("runs patch pay-1 --set /nodes/transfer/config/message=other --retry", "runs patch pay-1"),
        *rows("runs patch pay-1 repair.json --publish", "runs patch pay-1 repair.json --base nope"),
        *rows("runs patch pay-1 repair.json --expect 3", "runs patch pay-1 repair.json --expect 0", "runs patch"),
        *rows("runs patch pay-1 bad-patch.json", "runs patch pay-1 nope.json", "runs patch nope repair.json"),
        *rows(
            "runs patch pay-1 --set nope", "runs patch pay-1 --set /nodes/nope/config=1", "runs patch hi-1 list.yaml"
        ),
        *rows("runs patch pay-1 --set /nodes/receive/config=1 --retry", "runs patch pay-1 repair.json"),
        *rows("runs patch pay-1 broken.json", "runs patch rel-1 template.yaml --set /nodes/ship/config=1 --dry-run"),
        *rows("runs patch rel-1 --set /nodes/ship/config=1 --dry-run --json", "runs patch pay-1 --set nodes=1"),
        *rows("runs patch pay-1 --set /nodes/transfer/type=vlaue --json", "runs patch rel-1 repair.json"),
        Row("runs patch pay-1 - --dry-run", stdin='[{"op": "remove", "path": "/nodes/book"}]'),
    ],
    "approvals list": [
        *both("approvals list"),
        *both("approvals list --status all --limit 2"),
        *rows("approvals list --run rel-1", "approvals list --workflow nope", "approvals list --approver role:ops"),
        Row("approvals list --approver anyone --status all --json"),
        *rows("approvals list --status decided", "approvals list --status cancelled", "approvals list --status nope"),
        *rows("approvals list --after nonsense"),
    ],
    "approvals show": [
        *both("approvals show rel-1 review"),
        *both("approvals show rel-2 review"),
        *rows("approvals show rel-4 review", "approvals show rel-1 nope", "approvals show nope review"),
        *rows("approvals show rel-1 build", "approvals show rel-1", "approvals show rel-1 review --visit 9"),
    ],
    "approvals decide": [
        *both("approvals decide rel-1 review approve -f window=day --as ada --comments fine"),
        *both("approvals decide rel-1 review reject --as ada --comment early"),
        *rows("approvals decide rel-1 review changes --as ada --reason 'not yet'", "approvals decide"),
        *rows("approvals decide rel-1 review approve --as ada", "approvals decide rel-1 review approve -f window=noon"),
        *rows("approvals decide rel-1 review approve --as eve -f window=day", "approvals decide rel-1 review perhaps"),
        *rows("approvals decide rel-1 review approve --as dora --role ops -f window=night", "approvals decide rel-1"),
        *rows("approvals decide rel-1 review approve --as carl --role ops -f window=day", "approvals decide x y"),
        *rows("approvals decide rel-2 review approve --as ada", "approvals decide nope review approve"),
        *rows("approvals decide rel-1 review approve -f nope --as ada", "approvals decide rel-1 review reject --as ''"),
    ],
    "approvals delegate": [
        *both("approvals delegate rel-1 review eve --as ada --comment holiday"),
        *rows("approvals delegate rel-1 review eve --as mallory", "approvals delegate rel-1 review ada --as ada"),
        *rows(
            "approvals delegate nope review eve", "approvals delegate rel-1 review", "approvals delegate rel-1 no eve"
        ),
        Row("approvals show rel-1 review", ("approvals delegate rel-1 review eve --as ada --comment holiday",)),
    ],
    "dlq list": [
        *both("dlq list"),
        *rows("dlq list --run pay-1", "dlq list --code nope", "dlq list --workflow payment --limit 1 --json"),
        *rows(
            "dlq list --status nope",
            "dlq list workflow:payment code:no_account",
            "dlq list --status discarded",
            "dlq list --limit 0",
        ),
        Row("dlq list --status all", (DISCARD,)),
    ],
    "dlq show": [
        *both("dlq show pay-1 transfer"),
        Row("dlq show pay-1 transfer", (DISCARD,)),
        *rows("dlq show pay-1 receive", "dlq show nope transfer", "dlq show pay-1", "dlq show pay-1 transfer --item 1"),
    ],
    "dlq retry": [
        *both("dlq retry --run pay-1 --reason again"),
        *both("dlq retry --workflow payment --dry-run"),
        *rows("dlq retry workflow:payment --dry-run", "dlq retry pay-1 --dry-run"),
        *rows("dlq retry", "dlq retry --run nope", "dlq retry --code no_account --patch repair.json", "dlq retry x"),
        *rows("dlq retry --run pay-1 --config 1", "dlq retry --run pay-1 --node transfer --config '{\"attempts\": 0}'"),
        *both("dlq retry --run pay-1 --patch finished.json"),
        *rows("dlq retry --run pay-1 --patch bad-patch.json", "dlq retry --run pay-1 --patch nope.json"),
        *rows("dlq retry --run pay-1 --limit 0", "dlq retry --run pay-1 --limit 100001", "dlq retry --node x --json"),
    ],
    "dlq discard": [
        *both("dlq discard pay-1 transfer --reason 'too old' --as ada"),
        *rows("dlq discard pay-1 receive", "dlq discard nope transfer", "dlq discard pay-1"),
        Row("dlq discard pay-1 transfer", (DISCARD,)),
    ],
    "archive list": [
        *both("archive list"),
        *archived("archive list", "archive list --json", "archive list --workflow hello --limit 1 --json"),
        *archived("archive list --archive elsewhere", "archive list --workflow nope"),
        *rows("archive list --store memory://", "archive list --limit 0"),
    ],
    "archive show": [
        *archived("archive show hi-1", "archive show hi-1 --json", "archive show hi-1 --events"),
        *archived("archive show hi-1 --events --json", "archive show nope"),
        *rows("archive show hi-1", "archive show nope --json", "archive show"),
    ],
    "archive restore": [
        *archived("archive restore hi-1", "archive restore hi-1 --json", "archive restore nope"),
        *rows("archive restore hi-1", "archive restore"),
        Row("runs show hi-1", ("archive restore hi-1",), world="archived"),
        Row("archive restore hi-1", ("archive restore hi-1",), world="archived"),
    ],
    "archive sweep": [
        *both("archive sweep"),
        *both("archive sweep --dry-run"),
        *archived("runs show hi-1", "archive sweep --dry-run", "archive sweep --keep-runs"),
        Row("archive sweep --store memory://nothing --json"),
        *rows("archive sweep --retention-days -1", "archive sweep --retention-days x", "archive sweep x"),
    ],
    "blobs put": [
        *both("blobs put note.txt"),
        *rows("blobs put note.txt --keep --media-type text/x-note --json", "blobs put nope.txt", "blobs put"),
        *rows("blobs put .", "blobs put note.txt --store memory:// --json"),
        Row("blobs put -", stdin="from standard input"),
    ],
    "blobs get": [
        *both(f"blobs get {NOTE} -o copy.txt", PUT),
        *both(f"blobs get {NOTE}", PUT),
        *rows(f"blobs get {LONG}", "blobs get nope", "blobs get", f"blobs get {LONG} --json"),
        Row(f"blobs get {NOTE} -o nope/copy.txt", (PUT,)),
        Row(f"blobs get {NOTE} -o note.txt", (PUT,)),
    ],
    "blobs show": [*both(f"blobs show {NOTE}", PUT), *rows(f"blobs show {LONG}", "blobs show nope", "blobs show")],
    "blobs list": [
        *both("blobs list"),
        *both("blobs list", PUT),
        *both("blobs list --state active --limit 1", PUT, "blobs put scope.json --keep"),
        *rows("blobs list --after x", "blobs list --state nope", "blobs list --limit 0", "blobs list --state grace"),
    ],
    "blobs gc": [
        *both("blobs gc", PUT),
        *both("blobs gc --grace 0 --dry-run", PUT),
        *rows(
            "blobs gc --grace 0.5",
            "blobs gc --grace inf",
            "blobs gc --grace -1",
            "blobs gc --grace x",
            "blobs gc extra",
        ),
    ],
    "nodes list": [
        *both("nodes list"),
        *rows("nodes list --app world_steps.py", "nodes list --app nope.py --json", "nodes list extra"),
    ],
    "nodes show": [
        *both("nodes show value"),
        *[Row(f"nodes show {name}") for name in ("http", "human", "python", "llm", "sql", "pipeline", "fail")],
        Row("nodes show python@1 --json"),
        *rows("nodes show vlaue", "nodes show value@9", "nodes show nope --json", "nodes show"),
    ],
    "workflows list": [
        *both("workflows list"),
        *both("workflows list --limit 2"),
        *rows("workflows list --limit 0", "workflows list --after nonsense"),
    ],
    "workflows show": [
        *both("workflows show payment@1"),
        *rows("workflows show hello", "workflows show payment:stable", "workflows show nope", "workflows show"),
        *rows("workflows show payment@9", "workflows show payment:nope", "workflows show paymnet --json"),
    ],
    "workflows versions": [*both("workflows versions payment"), *rows("workflows versions nope", "workflows versions")],
    "workflows tags": [
        *both("workflows tags payment"),
        *rows("workflows tags hello", "workflows tags nope", "workflows tags"),
    ],
    "workflows diff": [
        *both("workflows diff payment@1 payment@2"),
        *rows("workflows diff payment release", "workflows diff payment payment", "workflows diff payment"),
        *rows("workflows diff payment nope"),
    ],
    "workflows tag": [
        *both("workflows tag payment stable 1 -m back --as ada"),
        *rows("workflows tag payment next 2", "workflows tag payment stable 9", "workflows tag nope stable 1"),
        *rows("workflows tag payment stable one", "workflows tag payment stable 0", "workflows tag payment stable"),
        *rows("workflows tag payment 'a b' 1", "workflows tag payment latest 1"),
        *both("workflows tag payment stable 1 --weight 25"),
        *rows("workflows tag payment next 2 --weight 25", "workflows tag payment stable 1 --weight 101"),
    ],
    "workflows rollback": [
        *both("workflows rollback payment stable --as ada -m back", "workflows tag payment stable 1"),
        *rows("workflows rollback payment nope", "workflows rollback nope stable", "workflows rollback payment latest"),
    ],
    "workflows delete": [
        *both("workflows delete hello --as ada"),
        *rows("workflows delete release", "workflows delete nope", "workflows delete"),
    ],
    "workflows untag": [
        *both("workflows untag payment stable"),
        *rows("workflows untag payment nope", "workflows untag nope stable", "workflows untag payment"),
    ],
    "workflows patch": [
        *both("workflows patch payment repair.json --as ada -m mended"),
        *rows("workflows patch payment --set /nodes/transfer/config/message=other", "workflows patch payment"),
        *rows("workflows patch payment bad-patch.json", "workflows patch nope repair.json", "workflows patch"),
        *rows("workflows patch payment repair.json --base nope", "workflows patch payment --set /nodes/x/type=value"),
    ],
    "workers": [
        *rows("workers", "workers --json", "workers --all", "workers --nope", "workers frobnicate"),
        *rows("workers --store sqlite:///nope.db", "workers --all show x"),
    ],
    "workers show": rows("workers show nope", "workers show nope --json", "workers show"),
}
CASES = {
    command: (rows if command == "root" else [Row(f"{command} --help"), *rows, Row(f"{command} --nope")])
    for command, rows in TABLE.items()
}

CHANGING = (
    (r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}", "UUID"),
    (r'"[^"/ ]+/\d+/[0-9a-f]{8}"', '"WORKER"'),
    (r" +(?:\d+ ms\b|<1 ms|\d+\.\d s\b)", " SPAN"),
    (r'"duration_ms":[0-9.]+,', ""),
    (r'"ms":[0-9.]+', '"ms":N'),
    (r'"(node_ms|work_ms)":\d+', r'"\1":N'),
    (r"tidemill [0-9.]+\n", "tidemill VERSION\n"),
    (r"(Tidemill|Python|SQLite|apsw) [0-9.]+\b", r"\1 VERSION"),
    (r"[0-9,.]+ GiB", "N GiB"),
    (r"local disk \(\w+\)", "local disk (KIND)"),
    (r"extras [\w, ]+\w", "extras NAMES"),
    (r'"token":\d+', '"token":TOKEN'),
)
"""What differs from one time to the next although the clock stands still."""


def steady(text: str, folder: Path) -> str:
    text = text.replace(str(folder), "FOLDER")
    for pattern, name in CHANGING:
        text = re.sub(pattern, name, text)
    return text


@pytest.fixture(scope="module")
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="module")
def ground() -> Iterator[Path]:
    """A folder in memory where there is one: a store syncs its file at every commit, and nothing here survives."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield Path(folder).resolve()


@pytest.fixture(scope="module")
def worlds(ground: Path, clock: Clock) -> dict[str, Path]:
    today, archive = ground / "today", ground / "archived"
    today.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("time.time_ns", clock)
        prepare(today, clock)
        shutil.copytree(today, archive)
        with clock.later(DAYS):
            assert call(["archive", "sweep", "--store", f"sqlite:///{archive}/tidemill.db"]) == 0
    return {"today": today, "archived": archive}


@pytest.fixture
def still(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time_ns", clock)
    monkeypatch.setattr("getpass.getuser", lambda: "dora")
    monkeypatch.setenv("COLUMNS", "80")
    # The folder may be on a small disk in memory.
    monkeypatch.setattr("tidemill.stores.sqlite.database.DISK_BYTES_LOW", 0)
    for name in ("TIDEMILL_STORE", "TIDEMILL_ARCHIVE", "TIDEMILL_TRACEBACK", "TIDEMILL_SHELL"):
        monkeypatch.delenv(name, raising=False)


def transcript(row: Row, folder: Path, inside: InProcessCli, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(folder)
    if row.real:
        ended = process(*shlex.split(row.argv), given=row.stdin.encode(), env={"COLUMNS": "80"})
    else:
        for command in row.before:
            assert inside(*shlex.split(command)).code == 0, command
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(row.stdin.encode())))
        ended = inside(*shlex.split(row.argv))
        forget(folder)
    marks = ["as a process"] * row.real + ["40 days later"] * (row.world == "archived")
    head = "".join(f"# {line}\n" for line in (*marks, *row.before))
    given = f"< {row.stdin!r}\n" if row.stdin else ""
    told = "".join(f"--- {name}\n{text}" for name, text in (("stdout", ended.out), ("stderr", ended.err)) if text)
    return f"{head}$ tidemill {row.argv}\n{given}" + steady(f"{told}=== {ended.code}\n", folder)


@pytest.mark.parametrize("command", CASES)
def test_transcripts(
    command: str,
    worlds: dict[str, Path],
    clock: Clock,
    still: None,
    inside: InProcessCli,
    ground: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = []
    for number, row in enumerate(CASES[command]):
        folder = ground / f"{command}-{number}"
        shutil.copytree(worlds[row.world], folder)
        with clock.later(0 if row.world == "today" else DAYS):
            told.append(transcript(row, folder, inside, monkeypatch))
        monkeypatch.chdir(ground)
        shutil.rmtree(folder)
    seen, file = "\n".join(told), GOLDEN / f"{command.replace(' ', '-')}.txt"
    if UPDATING:
        file.write_text(seen)
    expected = file.read_text()
    assert seen == expected, "\n".join(difflib.unified_diff(expected.splitlines(), seen.splitlines(), lineterm="", n=4))


def test_every_transcript_belongs_to_a_command() -> None:
    assert {f"{command.replace(' ', '-')}.txt" for command in TABLE} == {path.name for path in GOLDEN.iterdir()}
