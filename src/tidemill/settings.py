"""The operator's settings: what workflows are granted, and which services the engine uses.

They come from one `tidemill.toml` (`--config`, `TIDEMILL_CONFIG`, else the user's or the system's configuration folder)
and from `TIDEMILL_*` variables, which win. A `tidemill.toml` beside a document or in the current folder is never read
unless it is named: the author of the document may have written it. `Settings` holds plain values that `bootstrap`
builds objects from; an invalid value is refused at once, with the key or the variable as its path.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin
from urllib.parse import urlsplit

import msgspec

from tidemill.api.server_settings import JwtTable, ServerSettings, ServerTable
from tidemill.errors import Problem, Rejected, in_words, offered, rejected
from tidemill.handlers.email import server_at
from tidemill.handlers.smtp import Server
from tidemill.handlers.sql import STORE, is_database
from tidemill.net.egress import SCHEMES, Egress, invalid_host, read_allow_list
from tidemill.security.grants import (
    MCP_NAME,
    ImportGrants,
    McpServerGrant,
    SecretGrant,
    StoreSqlGrants,
    read_secret_grants,
)
from tidemill.security.identity import SECRET_LENGTH_MIN, JwtRules
from tidemill.security.roles import check_tenant_name
from tidemill.security.signing import KEYS_MAX, PREFIX, read_key

CONFIG_VARIABLE = "TIDEMILL_CONFIG"
CONFIG_NAME = "tidemill.toml"
DATABASE_PREFIX = "TIDEMILL_DATABASE_"
EGRESS_VARIABLE = "TIDEMILL_EGRESS_ALLOW"
IMPORTS_VARIABLE = "TIDEMILL_IMPORTS"
JWT_SECRET_VARIABLE = "TIDEMILL_JWT_SECRET"
SECRETS_VARIABLE = "TIDEMILL_SECRETS"
SERVER_SECRET_VARIABLE = "TIDEMILL_SERVER_SECRET"
WEBHOOK_SECRET_VARIABLE = "TIDEMILL_APPROVALS_SECRET"
SECRET_GRANTS_VARIABLE = "TIDEMILL_SECRET_GRANTS"
SHELL_VARIABLE = "TIDEMILL_SHELL"
SMTP_VARIABLE = "TIDEMILL_SMTP_URL"
SQL_STORE_VARIABLE = "TIDEMILL_SQL_STORE"
OTHER_VARIABLES = (
    *(CONFIG_VARIABLE, "TIDEMILL_STORE", "TIDEMILL_SERVER", "TIDEMILL_KEY", "TIDEMILL_ARCHIVE", "TIDEMILL_IMAGE"),
    "TIDEMILL_TRACEBACK",
)
"""Variables that are no grants and have no key in the file."""
VARIABLES = (
    *(EGRESS_VARIABLE, IMPORTS_VARIABLE, SECRETS_VARIABLE, SECRET_GRANTS_VARIABLE, SHELL_VARIABLE, SMTP_VARIABLE),
    *(JWT_SECRET_VARIABLE, SERVER_SECRET_VARIABLE, WEBHOOK_SECRET_VARIABLE, SQL_STORE_VARIABLE),
    *OTHER_VARIABLES,
)
PREFIXES = (DATABASE_PREFIX, "TIDEMILL_SECRET_")
"""What variables begin with that hold a database or a secret."""
OF_TESTS = ("TIDEMILL_GOLDEN", "TIDEMILL_SEEDS", "TIDEMILL_TEST_")
"""What variables begin with that only Tidemill's own tests read."""
_OF_SERVICE = re.compile(
    r"TIDEMILL_(?:\w+_)?(?:SERVICE_(?:HOST|PORT(?:_\w+)?)|PORT(?:_\d+_(?:TCP|UDP|SCTP)(?:_\w+)?)?)"
)
"""What Kubernetes sets in every container beside a Service whose name begins with `tidemill`."""
DESCENDANTS_MAX = 10_000
INPUT_BYTES_MAX = 1_048_576
REFERENCE = "reference/configuration.md"


T = TypeVar("T")


AMOUNT_MAX = 10**12
"""Of a budget: calls, tokens, or money."""


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds that only the operator raises."""

    max_descendants: Annotated[int, msgspec.Meta(ge=1)] = DESCENDANTS_MAX
    """Runs that one root run may start, directly and through its children."""
    input_bytes: Annotated[int, msgspec.Meta(ge=2)] = INPUT_BYTES_MAX
    """Size of a run's inputs; larger values belong into blobs."""
    value_memory: Annotated[int, msgspec.Meta(ge=1_000_000)] | None = None
    """Bytes that large values take which the nodes of one worker read at the same time; None means no limit."""
    agent_calls_per_day: Annotated[int, msgspec.Meta(ge=1, le=AMOUNT_MAX)] | None = None
    """Calls of language models that the agents of a tenant may make in a day; None means no limit."""
    agent_tokens_per_day: Annotated[int, msgspec.Meta(ge=1, le=AMOUNT_MAX)] | None = None
    agent_money_per_day: Annotated[float, msgspec.Meta(gt=0, le=AMOUNT_MAX)] | None = None
    """In the currency of the prices."""


class TracingSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """OpenTelemetry. Where spans go, its own variables say (`OTEL_EXPORTER_OTLP_ENDPOINT`, …)."""

    enabled: bool | None = None
    """None means: on if those variables are set."""
    content: bool = False
    """Spans also hold what models, tools and errors said."""


class _SqlTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    store: bool | None = None
    tables: dict[str, tuple[str, ...]] = {}


class _TenantTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    imports: tuple[str, ...] | None = None
    functions: tuple[str, ...] | None = None
    egress: tuple[str, ...] | None = None
    secrets: dict[str, SecretGrant] | None = None
    mcp: tuple[str, ...] | None = None


class _ConfigFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The shape of `tidemill.toml`."""

    imports: tuple[str, ...] | None = None
    egress: tuple[str, ...] = ()
    shell: bool = False
    smtp: str = ""
    interpreter_packages: tuple[str, ...] = ()
    secrets_folder: str = ""
    secrets: dict[str, SecretGrant] = {}
    databases: dict[str, str] = {}
    sql: _SqlTable = _SqlTable()
    limits: Limits = Limits()
    mcp: dict[str, McpServerGrant] = {}
    server: ServerTable = ServerTable()
    tenants: dict[str, _TenantTable] = {}
    tracing: TracingSettings = TracingSettings()


class TenantGrants(msgspec.Struct, frozen=True, kw_only=True):
    """What the runs of one tenant may use; None is what the process may."""

    imports: ImportGrants | None = None
    functions: tuple[str, ...] | None = None
    """Names of registered functions; `*` stands for any text."""
    egress: Egress | None = None
    secrets: Mapping[str, SecretGrant] | None = None
    mcp: tuple[str, ...] | None = None
    """Names of MCP servers."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's settings, from all sources together."""

    imports: ImportGrants | None = None
    """Import paths for `python` nodes; None where the operator has not said, and the command decides."""
    egress: Egress = Egress()
    shell: bool = False
    smtp: Server | None = None
    interpreter_packages: tuple[str, ...] = ()
    """Packages that the code of models may import in `code_interpreter`."""
    secrets_folder: Path | None = None
    secrets: Mapping[str, SecretGrant] = {}
    databases: Mapping[str, tuple[str, str]] = {}
    """By name: the URL, and where it was said."""
    sql: StoreSqlGrants = StoreSqlGrants()
    limits: Limits = Limits()
    mcp: Mapping[str, McpServerGrant] = {}
    """MCP servers whose tools agents may use, by name."""
    server: ServerSettings = ServerSettings()
    tenants: Mapping[str, TenantGrants] = {}
    functions: tuple[str, ...] | None = None
    """Names of registered functions that `python` nodes may call; None: all. Only of a tenant."""
    tracing: TracingSettings = TracingSettings()
    source: Path | None = None
    """The configuration file that was read."""

    def of_tenant(self, name: str) -> Settings:
        """The settings with which the node types of a tenant are made."""
        grants = self.tenants.get(name, TenantGrants())
        return msgspec.structs.replace(
            self,
            imports=self.imports if grants.imports is None else grants.imports,
            egress=self.egress if grants.egress is None else grants.egress,
            functions=grants.functions,
            mcp={name: each for name, each in self.mcp.items() if grants.mcp is None or name in grants.mcp},
        )

    @property
    def granted(self) -> dict[str, list[str]]:
        """What workflows are granted, by kind and without values: as short as the operator can check it."""
        smtp = [] if self.smtp is None else [f"{self.smtp.host}:{self.smtp.port}"]
        found = {
            "imports": [] if self.imports is None else list(self.imports.patterns),
            "secrets": [f"{name} to {' '.join(each.origins) or 'nowhere'}" for name, each in self.secrets.items()],
            "egress": list(self.egress.allow),
            "databases": [*self.databases, *([STORE] if self.sql.enabled else [])],
            "commands": ["on"] if self.shell else [],
            "mail": smtp,
            "mcp": list(self.mcp),
        }
        return {kind: names for kind, names in found.items() if names}

    @property
    def may_import(self) -> bool:
        """Whether any import is allowed, if only because the operator has not said."""
        return self.imports is None or bool(self.imports.patterns)


class _Problems:
    """What is wrong in the file and in the variables, collected so that the operator sees all of it at once."""

    def __init__(self) -> None:
        self._found: list[Problem] = []

    def add(self, path: str, message: str, hint: str, *, code: str = "setting_invalid") -> None:
        self._found.append(Problem(code=code, path=path, message=message, hint=hint))

    def read(self, make: Callable[[], T], default: T, place: str = "") -> T:
        """What `make` reads, or the default if it is refused; `place` is where the value was given."""
        try:
            return make()
        except Rejected as refusal:
            self._found += [msgspec.structs.replace(each, path=place or each.path) for each in refusal.problems]
            return default

    def refuse(self) -> None:
        if self._found:
            raise Rejected(self._found)


def read_settings(config: str | Path | None = None, *, imports: Sequence[str] = (), secrets: bool = True) -> Settings:
    """Read the configuration file and the environment. `imports` are further grants, given as flags.

    A process that runs no nodes needs no secrets: without `secrets`, variables about them may be wrong. Raises Rejected
    with everything else that is.
    """
    problems, variables = _Problems(), os.environ
    problems.read(refuse_unknown_variables, None)
    path = problems.read(lambda: _config_path(config), None)
    nothing = _ConfigFile()
    file = nothing if path is None else problems.read(partial(_read_file, path, problems), nothing)

    def said(variable: str, key: str) -> str:
        return variable if variables.get(variable) else f"{path}: {key}"

    egress = variables.get(EGRESS_VARIABLE) or ",".join(file.egress)
    smtp = variables.get(SMTP_VARIABLE) or file.smtp
    grants = variables.get(SECRET_GRANTS_VARIABLE, "") if secrets else ""
    settings = Settings(
        imports=_imports(
            problems.read(lambda: _listed_imports(file.imports), None, said(IMPORTS_VARIABLE, "imports")),
            problems.read(lambda: ImportGrants.read(imports), ImportGrants(), "--allow-import"),
        ),
        egress=problems.read(lambda: Egress(allow=read_allow_list(egress)), Egress(), said(EGRESS_VARIABLE, "egress")),
        shell=problems.read(
            lambda: _switch(SHELL_VARIABLE, "commands are", file.shell, code="shell_switch_invalid"), False
        ),
        smtp=problems.read(lambda: server_at(smtp) if smtp else None, None, said(SMTP_VARIABLE, "smtp")),
        interpreter_packages=file.interpreter_packages,
        secrets_folder=problems.read(
            lambda: _secrets_folder(file.secrets_folder) if secrets else None,
            None,
            said(SECRETS_VARIABLE, "secrets_folder"),
        ),
        secrets={**file.secrets, **problems.read(lambda: read_secret_grants(grants), {}, SECRET_GRANTS_VARIABLE)},
        databases=_databases(file.databases, f"{path}", problems),
        sql=StoreSqlGrants(
            enabled=problems.read(
                lambda: _switch(SQL_STORE_VARIABLE, "SQL on the store is", file.sql.store, code="sql_switch_invalid"),
                None,
            ),
            tables=file.sql.tables,
        ),
        limits=file.limits,
        mcp={name: _mcp_server(name, each, f"{path}: mcp.{name}", problems) for name, each in file.mcp.items()},
        server=_server(file.server, f"{path}: server", problems),
        tenants={
            name: _tenant(table, f"{path}: tenants.{name}", name, file.mcp, problems)
            for name, table in file.tenants.items()
        },
        tracing=file.tracing,
        source=path,
    )
    problems.refuse()
    return settings


def _server(table: ServerTable, place: str, problems: _Problems) -> ServerSettings:
    variables = os.environ
    secret = variables.get(SERVER_SECRET_VARIABLE) or table.secret
    _check_secret(secret, SERVER_SECRET_VARIABLE, f"{place}.secret", problems)
    for key, url in (("public_url", table.public_url), ("approvals.webhook", table.approvals.webhook)):
        if url and not _is_url(url):
            problems.add(f"{place}.{key}", f"{url[:100]!r} is not a valid URL", "begin with https:// and a host")
    given = variables.get(WEBHOOK_SECRET_VARIABLE) or table.approvals.secret
    keys = tuple(given.split()) if isinstance(given, str) else given
    for signing_key in keys:
        problems.read(partial(read_key, signing_key), b"", f"{place}.approvals.secret")
    if table.approvals.webhook and not 0 < len(keys) <= KEYS_MAX:
        hint = f"give one key, or two while you replace it: {PREFIX} and 32 random bytes in base64"
        problems.add(f"{place}.approvals.secret", "a webhook is signed with one key or two", hint)
    rules, jwks = _jwt(table.jwt, f"{place}.jwt", problems)
    return ServerSettings(
        secret=secret,
        public_url=table.public_url,
        limits=table.limits,
        approval_webhook=table.approvals.webhook,
        approval_webhook_keys=keys,
        link_hours=table.approvals.link_hours,
        jwt=rules,
        jwks=jwks,
        session_hours=table.session_hours,
    )


def _check_secret(secret: str, variable: str, place: str, problems: _Problems) -> None:
    if secret and len(secret.encode()) < SECRET_LENGTH_MIN:
        at, hint = (
            variable if os.environ.get(variable) else place,
            f"write {SECRET_LENGTH_MIN} random characters or more",
        )
        problems.add(at, f"the secret is shorter than {SECRET_LENGTH_MIN} bytes", hint)


def _jwt(given: JwtTable, place: str, problems: _Problems) -> tuple[JwtRules | None, Path | None]:
    secret = os.environ.get(JWT_SECRET_VARIABLE) or given.secret
    jwks = Path(given.jwks).expanduser() if given.jwks else None
    _check_secret(secret, JWT_SECRET_VARIABLE, f"{place}.secret", problems)
    if secret and jwks is not None:
        hint = "keep one: the secret of HS256, or the file with public keys"
        problems.add(place, "both a secret and a key set are given", hint)
    if jwks is not None and not os.path.isfile(jwks):
        problems.add(f"{place}.jwks", f"there is no file {jwks}", "name the JWKS file of the issuer")
    for key in ("issuer", "audience"):
        if jwks is not None and not getattr(given, key):
            hint = "without it, tokens that the issuer makes for others would be accepted"
            problems.add(f"{place}.{key}", f"{key} is missing", hint)
    if not secret and jwks is None:
        return None, None
    names = ("issuer", "audience", "leeway_seconds", "tenant_claim", "roles_claim", "name_claim")
    return JwtRules(secret=secret, **{name: getattr(given, name) for name in names}), jwks


def _is_url(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return parts.scheme in SCHEMES and not invalid_host(parts.hostname or "") and parts.port != 0
    except ValueError:
        return False


def _tenant(table: _TenantTable, place: str, name: str, servers: Collection[str], problems: _Problems) -> TenantGrants:
    problems.read(lambda: check_tenant_name(name), None, place)
    for server in table.mcp or ():
        if server not in servers:
            hint = offered(server, servers) if servers else "add a table [mcp.NAME]"
            problems.add(f"{place}.mcp", f"there is no MCP server {server[:80]!r}", hint)
    imports, egress = table.imports, table.egress
    return TenantGrants(
        imports=problems.read(
            lambda: None if imports is None else ImportGrants.read(imports), None, f"{place}.imports"
        ),
        functions=table.functions,
        egress=problems.read(lambda: None if egress is None else Egress(allow=egress), None, f"{place}.egress"),
        secrets=table.secrets,
        mcp=table.mcp,
    )


_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def _mcp_server(name: str, grant: McpServerGrant, place: str, problems: _Problems) -> McpServerGrant:
    if not MCP_NAME.fullmatch(name):
        hint = "use lower-case letters, digits and dashes, at most 32"
        problems.add(place, f"{name!r} is not the name of an MCP server", hint)
    if bool(grant.command) == bool(grant.url):
        hint = 'write command = ["program", "argument"] or url = "https://…"'
        problems.add(place, "a server has a command or a url", hint)
    if any(not part.strip() or "\0" in part for part in grant.command):
        problems.add(f"{place}.command", "a part of the command is empty", 'write command = ["program", "argument"]')
    for tool, digest in grant.tools.items():
        if not _DIGEST.fullmatch(digest):
            hint = f"`tidemill tools mcp {name} --approve` prints the lines that approve tools"
            problems.add(f"{place}.tools.{tool}", f"{digest[:100]!r} is not a digest of a tool", hint)
    if grant.url and (not _is_url(grant.url) or "@" in grant.url):
        problems.add(f"{place}.url", f"{grant.url[:100]!r} is not a valid URL", "begin with https:// and a host")
    wrong, right = ("env", "headers") if grant.url else ("headers", "env")
    if getattr(grant, wrong):
        problems.add(f"{place}.{wrong}", f"a server of this kind has no {wrong}", f"write {right}")
    return grant


def refuse_unknown_variables() -> None:
    """Raise Rejected with every `TIDEMILL_*` variable that nothing reads: a misspelt one would be ignored."""
    if found := _unknown_variables():
        raise Rejected(found)


def _unknown_variables() -> list[Problem]:
    unknown = (
        name
        for name in sorted(os.environ)
        if name.startswith("TIDEMILL_")
        and name not in VARIABLES
        and not name.startswith((*PREFIXES, *OF_TESTS))
        and not _OF_SERVICE.fullmatch(name)
    )
    return [
        Problem(
            code="variable_unknown",
            message="this version of Tidemill has no such variable",
            path=name,
            hint=_meant_variable(name),
        )
        for name in unknown
    ]


def _meant_variable(name: str) -> str:
    """A hint for an unknown variable: the similar one without what all have in common, and how to get on."""
    # Imported only when a name is unknown.
    from difflib import get_close_matches

    before = "TIDEMILL_"
    given = name.removeprefix(before)
    kinds = [each.removeprefix(before).strip("_") for each in PREFIXES]
    known = [*(each.removeprefix(before) for each in VARIABLES), *(f"{kind}_NAME" for kind in kinds)]
    begins, _, rest = given.partition("_")
    if rest and (kind := get_close_matches(begins, kinds, n=1, cutoff=0.7)):
        known.append(f"{kind[0]}_{rest}")
    longer = [each for each in known if each.startswith(f"{given}_")]
    near = longer if len(longer) == 1 else get_close_matches(given, known, n=1, cutoff=0.7)
    if near:
        return f"did you mean `{before}{near[0]}`? Otherwise unset it"
    return f"unset it; a variable of your own needs another prefix, and docs/{REFERENCE} lists those of this version"


def ignored_config(*folders: Path) -> Path | None:
    """A `tidemill.toml` in one of these folders, which is not read unless it is named."""
    read = _config_path(None)
    for folder in folders:
        found = folder / CONFIG_NAME
        if os.path.isfile(found) and (read is None or not found.samefile(read)):
            return found
    return None


def _config_path(named: str | Path | None) -> Path | None:
    """The configuration file: the named one must exist, one of the configuration folders may."""
    variable = os.environ.get(CONFIG_VARIABLE)
    if named or variable:
        path = Path(named or variable or "").expanduser()
        if not os.path.isfile(path):
            message = f"there is no configuration file {path}"
            hint = "name a file that exists"
            raise rejected("config_missing", message, path="--config" if named else CONFIG_VARIABLE, hint=hint)
        return path
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser())
    places = (home / "tidemill" / CONFIG_NAME, Path("/etc/tidemill") / CONFIG_NAME)
    return next((each for each in places if each.is_absolute() and os.path.isfile(each)), None)


def _read_file(path: Path, problems: _Problems) -> _ConfigFile:
    import tomllib

    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        hint = "let this user read it, or name another file with --config"
        message = f"{path} cannot be read: {error.strerror}"
        raise rejected("config_unreadable", message, path=str(path), hint=hint) from None
    except (ValueError, RecursionError) as error:
        hint = f"docs/{REFERENCE} shows one"
        raise rejected("config_unreadable", f"{path} is not TOML: {error}", path=str(path), hint=hint) from None
    found = _fitted(raw, _ConfigFile, f"{path}: ", problems)
    return found if isinstance(found, _ConfigFile) else _ConfigFile()


def _fitted(value: Any, wanted: Any, place: str, problems: _Problems) -> Any:
    """A value of the file as its type wants it; what does not fit is recorded and left out (`UNSET`)."""
    below = place if place.endswith(": ") else f"{place}."
    if isinstance(value, dict) and get_origin(wanted) is dict:
        pairs = {key: _fitted(each, get_args(wanted)[1], f"{below}{key}", problems) for key, each in value.items()}
        return {key: each for key, each in pairs.items() if each is not msgspec.UNSET}
    if isinstance(value, list) and (entry := _entry_type(wanted)) is not None:
        entries = [_fitted(each, entry, f"{place}[{number}]", problems) for number, each in enumerate(value)]
        return tuple(each for each in entries if each is not msgspec.UNSET)
    try:
        if isinstance(value, dict) and isinstance(wanted, type) and issubclass(wanted, msgspec.Struct):
            return wanted(**_fields(value, wanted, below, problems))
        return msgspec.convert(value, wanted)
    except (ValueError, TypeError) as error:
        message, _, at = str(error).partition(" - at `$")
        path, key = f"{place.removesuffix(': ')}{at.removesuffix('`')}", place.rpartition(" ")[2]
        hint = f'write {key} = ["…"]' if _entry_type(wanted) else f"docs/{REFERENCE} lists all keys and their values"
        problems.add(path, in_words(message, key), "write true or false, without quotes" if wanted is bool else hint)
    return msgspec.UNSET


def _entry_type(wanted: Any) -> Any:
    """The type of the entries, where a list is wanted; else None."""
    if get_origin(wanted) is tuple:
        return get_args(wanted)[0]
    return next((entry for each in get_args(wanted) if (entry := _entry_type(each)) is not None), None)


def _fields(table: dict[str, Any], wanted: type[msgspec.Struct], below: str, problems: _Problems) -> dict[str, Any]:
    fields = {field.name: field.type for field in msgspec.structs.fields(wanted)}
    for key in table:
        if key not in fields:
            problems.add(f"{below}{key}", f"there is no key {key!r} here", offered(key, fields))
    found = {
        key: _fitted(value, fields[key], f"{below}{key}", problems) for key, value in table.items() if key in fields
    }
    for field in msgspec.structs.fields(wanted):
        if field.required and field.name not in found:
            hint = f'write {field.name} = ["…"]'
            problems.add(f"{below}{field.name}", f"{field.name} is missing", hint)
            found[field.name] = ()
        elif field.required and found[field.name] is msgspec.UNSET:
            found[field.name] = ()
    return {key: value for key, value in found.items() if value is not msgspec.UNSET}


def _listed_imports(file: tuple[str, ...] | None) -> ImportGrants | None:
    variable = os.environ.get(IMPORTS_VARIABLE)
    listed = [each.strip() for each in variable.split(",")] if variable is not None else file
    return None if listed is None else ImportGrants.read(filter(None, listed))


def _imports(listed: ImportGrants | None, flags: ImportGrants) -> ImportGrants | None:
    """Flags add to what is listed; without either the command decides."""
    if listed is None:
        return flags if flags.patterns else None
    return ImportGrants((*listed.patterns, *flags.patterns))


def _switch(variable: str, subject: str, default: T, *, code: str) -> bool | T:
    match os.environ.get(variable, ""):
        case "on":
            return True
        case "off":
            return False
        case "":
            return default
        case other:
            raise rejected(code, f"{subject} on or off, not {other!r}", path=variable, hint=f"write {variable}=on")


def _secrets_folder(file: str) -> Path | None:
    text = os.environ.get(SECRETS_VARIABLE) or file
    if not text:
        return None
    folder = Path(text)
    if not os.access(folder, os.X_OK) or not folder.is_dir():
        message = f"there is no folder {text} that this user may look into"
        hint = "name a folder that holds a file for each secret"
        raise rejected("secrets_folder_invalid", message, hint=hint)
    return folder


def _databases(file: Mapping[str, str], where: str, problems: _Problems) -> dict[str, tuple[str, str]]:
    """The databases by the name that documents use: `crm` is `TIDEMILL_DATABASE_CRM`, or a key of `[databases]`."""
    found = {name: (url, f"{where}: databases.{name}") for name, url in file.items()}
    if STORE in found:
        message, hint = f"{STORE!r} means the store that holds the run", "give it another name, such as crm"
        problems.add(found[STORE][1], message, hint, code="database_name_invalid")
    variables: dict[str, str] = {}
    for variable in sorted(each for each in os.environ if each.startswith(DATABASE_PREFIX)):
        name = variable.removeprefix(DATABASE_PREFIX).lower()
        if problem := _name_problem(name, variables):
            hint = f"give it another name, such as {DATABASE_PREFIX}CRM"
            problems.add(variable, problem, hint, code="database_name_invalid")
            continue
        variables[name] = variable
        found[name] = (os.environ[variable], variable)
    for url, place in found.values():
        if not is_database(url):
            hint = "write sqlite:////var/crm.db or postgresql://user:password@host/name"
            problems.add(place, "this is neither sqlite:///FILE nor postgresql://…", hint, code="database_unknown")
    return found


def _name_problem(name: str, others: dict[str, str]) -> str:
    if name == STORE:
        return f"{STORE!r} means the store that holds the run"
    if name in others:
        return f"{others[name]} names the same database"
    return "" if name else "the database has no name"
