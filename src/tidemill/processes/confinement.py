"""Confine this process before it runs code of a stranger: what is given up here cannot be got back.

The environment, the network (an empty namespace where the kernel allows one), limits on time, memory, files and
processes, and two fences. Landlock, where the kernel has it, refuses files outside the installed packages, programs,
TCP and other processes; an audit hook refuses these, sockets and foreign code with a message. The code can change any
module of its process, so the hook alone does not hold, and uses nothing that it could change.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from contextlib import suppress
from importlib import import_module
from sysconfig import get_paths
from typing import Any

FILES_MAX = 256


def confine(seconds: float, memory_bytes_max: int) -> None:
    """Give up everything but time to compute and memory, for so many seconds; SIGALRM or SIGXCPU ends the process."""
    os.environ.clear()
    unshare, namespaces = getattr(os, "unshare", None), ("CLONE_NEWUSER", "CLONE_NEWNET")
    if unshare is not None:
        # Where the kernel refuses that, the audit hook still refuses sockets.
        with suppress(OSError):
            unshare(sum(getattr(os, name) for name in namespaces))
    signal.setitimer(signal.ITIMER_REAL, seconds)
    for kind, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, FILES_MAX),
        (resource.RLIMIT_CPU, round(seconds) + 1),
        (resource.RLIMIT_DATA, memory_bytes_max),
    ):
        hard = resource.getrlimit(kind)[1]
        bound = most if hard < 0 else min(most, hard)
        resource.setrlimit(kind, (bound, bound))
    installed = {get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    roots = {f"{each}{os.sep}" for path in installed for each in (path, os.path.realpath(path))}
    _restrict_files(sorted(roots))
    for name, function in (("_posixsubprocess", "fork_exec"), ("subprocess", "_fork_exec")):
        # It causes no audit event.
        setattr(import_module(name), function, None)
    sys.addaudithook(_guard(tuple(roots)))


_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_READ_FILE, _READ_FOLDER = 1 << 2, 1 << 3
_BENEATH, _SET_NO_NEW_PRIVS = 1, 38
_FILE_RIGHTS = (13, 14, 15, 15, 16)
"""How many rights on files Landlock knows, by its version; versions after the last one know no fewer."""


def _restrict_files(roots: list[str]) -> None:
    """Let the kernel (Landlock) refuse every file but those to read below `roots`, programs, TCP and other processes.

    Where the kernel has no Landlock, the audit hook remains.
    """
    known = set(sys.modules)
    with suppress(ImportError, OSError, AttributeError):
        import ctypes

        if sys.platform == "linux":
            _landlock(ctypes, roots)
    for name in set(sys.modules) - known:
        # Imported again, it would open a library, which the hook refuses.
        del sys.modules[name]


def _landlock(ctypes: Any, roots: list[str]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return
    rights = (1 << _FILE_RIGHTS[min(version, len(_FILE_RIGHTS)) - 1]) - 1
    # Files; TCP from version 4 on; abstract sockets and signals of others from version 6 on.
    words = [rights, *([3] if version >= 4 else []), *([3] if version >= 6 else [])]
    asked = b"".join(word.to_bytes(8, sys.byteorder) for word in words)
    rules = libc.syscall(_CREATE_RULESET, asked, ctypes.c_size_t(len(asked)), 0)
    if rules < 0:
        return
    for root in roots:
        with suppress(OSError):
            folder = os.open(root, os.O_PATH | os.O_CLOEXEC)
            allowed = (_READ_FILE | _READ_FOLDER).to_bytes(8, sys.byteorder) + folder.to_bytes(4, sys.byteorder)
            libc.syscall(_ADD_RULE, rules, _BENEATH, allowed, 0)
            os.close(folder)
    if libc.prctl(_SET_NO_NEW_PRIVS, *map(ctypes.c_ulong, (1, 0, 0, 0))) == 0:
        libc.syscall(_RESTRICT_SELF, rules, 0)
    os.close(rules)


_REFUSED = (
    *("socket.", "subprocess.", "ctypes.", "shutil.", "ftplib.", "http.client.", "imaplib.", "smtplib.", "urllib."),
    *("os.exec", "os.fork", "os.kill", "os.posix_spawn", "os.spawn", "os.startfile", "os.system", "os.putenv"),
    *("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod"),
    *("os.chown", "os.chdir", "os.chflags", "os.setxattr", "os.removexattr", "os.utime", "pty.", "fcntl.", "mmap."),
    *("msvcrt.", "signal.pthread_kill", "sqlite3.", "syslog.", "webbrowser.", "winreg.", "code.__new__", "gc."),
    *("cpython.", "sys.set", "sys.remote_exec", "tempfile.", "resource.", "faulthandler."),
)
"""Audit events that the code must not cause, by their beginnings."""


def _guard(roots: tuple[str, ...]) -> Any:
    """An audit hook. What it uses are defaults of its own: the code can change modules, built-in names and frames."""
    writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

    def guard(
        event: str,
        arguments: tuple[Any, ...],
        *,
        kind: Any = type,
        text: Any = str,
        number: Any = int,
        starts: Any = str.startswith,
        ends: Any = str.endswith,
        has: Any = str.__contains__,
        roots: tuple[str, ...] = roots,
        writes: int = writes,
        refused: tuple[str, ...] = _REFUSED,
        error: Any = PermissionError,
    ) -> None:
        if event == "open" or event in ("os.listdir", "os.scandir", "os.walk"):
            # Exactly a text, and without a step up: nothing here may run methods of the code.
            path = arguments[0] if arguments else None
            inside = kind(path) is text and starts(path, roots) and not has(path, "/../") and not ends(path, "/..")
            changes = event == "open" and kind(arguments[2]) is number and arguments[2] & writes
            if not inside or changes:
                raise error("code of a model has no files")
        elif starts(event, refused):
            raise error(f"code of a model may not do this: {event}")

    return guard
