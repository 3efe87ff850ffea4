"""Credentials: API keys, JSON Web Tokens and sessions, and the principal that each proves. No store is known here.

An API key is `tm_<id>_<secret>`. The id is `<tenant>.<hex>`, so that a key is looked up in its own tenant and the
tenant comes from the credential alone. The secret is 256 random bits; only the SHA-256 of the whole key is stored. No
slow hash is needed: those protect passwords, which can be guessed, and nothing guesses 256 random bits. All comparisons
take constant time.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from tidemill.errors import Rejected, rejected
from tidemill.security.roles import Principal, check_tenant_name, is_tenant_name

if TYPE_CHECKING:
    from jwt import PyJWK

# API keys

KEY_PREFIX = "tm"
KEY_LENGTH_MAX = 256
SECRET_BYTES = 32
_KEY_ID = re.compile(r"([a-z0-9-]{1,63})\.([0-9a-f]{16})")
NO_HASH = hashlib.sha256(b"").digest()
"""Compared with when a key is unknown, so that it takes as long as when it is known."""


class NewKey(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    text: str
    """The whole key, which is shown once and never stored."""
    hash: bytes


def new_key(tenant: str, of: bytes = b"") -> NewKey:
    """A key whose id follows from `of`: who makes two of the same thing gives them the same id."""
    check_tenant_name(tenant)
    key_id = f"{tenant}.{hashlib.sha256(of).hexdigest()[:16] if of else secrets.token_hex(8)}"
    text = f"{KEY_PREFIX}_{key_id}_{secrets.token_urlsafe(SECRET_BYTES)}"
    return NewKey(id=key_id, text=text, hash=hash_of_key(text))


def hash_of_key(text: str) -> bytes:
    """What is stored of a key; it covers the id, so that it fits no other key."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def id_of_key(text: str) -> str:
    """The id within a key; empty if the text is not a key."""
    if len(text) > KEY_LENGTH_MAX or not text.isascii():
        return ""
    prefix, _, rest = text.partition("_")
    key_id, _, secret = rest.partition("_")
    return key_id if prefix == KEY_PREFIX and secret and tenant_of_key(key_id) else ""


def tenant_of_key(key_id: str) -> str:
    """The tenant that a key belongs to; empty if the text is not an id of a key."""
    found = _KEY_ID.fullmatch(key_id)
    return found[1] if found is not None and is_tenant_name(found[1]) else ""


def same_key(text: str, stored: bytes) -> bool:
    return hmac.compare_digest(hash_of_key(text), stored)


def credential_invalid(
    message: str = "the credential is not valid here", *, code: str = "credential_invalid"
) -> Rejected:
    return rejected(code, message, hint="ask an admin of the tenant for a key")


# JSON Web Tokens

TOKEN_LENGTH_MAX = 16_384
SECRET_LENGTH_MIN = 32
HMAC_ALGORITHM = "HS256"
ALGORITHMS: Mapping[str, tuple[str, ...]] = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512"),
    "OKP": ("EdDSA",),
}
"""Signatures that a public key of a kind can have. A key set with symmetric keys is refused: its file is public."""
RESERVED_NAMES = ("key:", "schedule:", "system:")
"""Names of actors begin with these that are no subjects of tokens."""
NAME_LENGTH_MAX = 200
EXPIRES_S_MAX = 253_402_300_799
"""The last second that `exp` of a token may name: that of the year 9999."""
ROLES_MAX = 50
REREAD_MS = 5_000
"""A key set is read again for an unknown key, but not more often than this."""


class JwtRules(msgspec.Struct, frozen=True, kw_only=True):
    """Which tokens are accepted, and which of their claims say who asks."""

    secret: str = ""
    """Of HS256; else the tokens are signed with a key of the set."""
    issuer: str = ""
    audience: str = ""
    leeway_seconds: float = 30.0
    tenant_claim: str = "tenant"
    roles_claim: str = "roles"
    name_claim: str = "sub"


class JwtVerifier:
    """Verifies tokens under fixed rules: the algorithm comes from them and from the key, never from the token."""

    def __init__(self, rules: JwtRules, read_key_set: Callable[[], bytes] | None = None) -> None:
        self.rules, self._read, self._jwt = rules, read_key_set, _library()
        self._keys: dict[str, tuple[PyJWK, tuple[str, ...]]] = {}
        self._read_ms: float | None = None
        if read_key_set is not None:
            self._keys = self._key_set(read_key_set())

    def principal(self, token: str, now_ms: float) -> Principal:
        """Who a token names; `now_ms` is any clock that does not go back. Raises Rejected (`credential_invalid`)."""
        claims = self._claims(token, now_ms)
        rules = self.rules
        tenant, name = _claim(claims, rules.tenant_claim), _claim(claims, rules.name_claim)
        if not is_tenant_name(tenant):
            raise credential_invalid(f"the token has no tenant in its claim {rules.tenant_claim}")
        usable = isinstance(name, str) and name.isprintable() and 0 < len(name) <= NAME_LENGTH_MAX
        # Approvals take `user:x` and `x` for the same person.
        if not usable or str(name).strip().removeprefix("user:").strip().startswith(RESERVED_NAMES):
            raise credential_invalid(f"the token has no person in its claim {rules.name_claim}")
        roles = _claim(claims, rules.roles_claim)
        listed: list[Any] = roles.split() if isinstance(roles, str) else roles if isinstance(roles, list) else []
        known = [
            role for role in listed if isinstance(role, str) and role.isprintable() and len(role) <= NAME_LENGTH_MAX
        ]
        return Principal(
            tenant=str(tenant),
            name=str(name),
            roles=tuple(dict.fromkeys(known[:ROLES_MAX])),
            expires_ms=int(claims["exp"] * 1_000),
        )

    def _claims(self, token: str, now_ms: float) -> dict[str, Any]:
        jwt, rules = self._jwt, self.rules
        if len(token) > TOKEN_LENGTH_MAX:
            raise credential_invalid()
        try:
            key, algorithms = self._key_for(token, now_ms)
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=list(algorithms),
                audience=rules.audience or None,
                issuer=rules.issuer or None,
                leeway=rules.leeway_seconds,
                options={"require": ["exp"], "verify_aud": bool(rules.audience), "verify_iss": bool(rules.issuer)},
            )
        except jwt.ExpiredSignatureError:
            raise credential_invalid("the token has expired", code="token_expired") from None
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError):
            # Callers who cannot sign do not learn which check failed.
            raise credential_invalid() from None
        if not isinstance(claims["exp"], (int, float)) or not claims["exp"] <= EXPIRES_S_MAX:
            raise credential_invalid("the token does not say when it expires")
        return claims

    def _key_for(self, token: str, now_ms: float) -> tuple[Any, tuple[str, ...]]:
        if self.rules.secret:
            return self.rules.secret, (HMAC_ALGORITHM,)
        kid = self._jwt.get_unverified_header(token).get("kid", "")
        is_due = self._read_ms is None or now_ms - self._read_ms >= REREAD_MS
        if kid not in self._keys and self._read is not None and is_due:
            self._read_ms = now_ms
            # A file that is being replaced is read later; the keys that are known stay.
            with suppress(OSError, Rejected):
                self._keys = self._key_set(self._read())
        if kid in self._keys:
            key, algorithms = self._keys[kid]
            return key.key, algorithms
        raise credential_invalid()

    def _key_set(self, text: bytes) -> dict[str, tuple[PyJWK, tuple[str, ...]]]:
        try:
            keys = msgspec.json.decode(text)["keys"]
            found = {}
            for each in keys:
                kind, algorithm = each["kty"], each.get("alg")
                algorithms = ALGORITHMS[kind] if algorithm is None else (algorithm,)
                if not set(algorithms) <= set(ALGORITHMS[kind]):
                    raise ValueError(f"a key of kind {kind} cannot sign with {algorithm}")
                if each.get("use", "sig") == "sig":
                    # Without `alg` the library takes that of the kind and curve.
                    key = self._jwt.PyJWK(each)
                    found[str(each.get("kid", ""))] = key, (key.algorithm_name,) if kind != "RSA" else algorithms
        except (msgspec.MsgspecError, KeyError, TypeError, ValueError, AttributeError, self._jwt.PyJWTError) as error:
            message = f"the key set of the tokens cannot be used: {type(error).__name__}: {error}"
            hint = 'a JWKS file holds {"keys": […]} with public keys of kind RSA, EC or OKP'
            raise rejected("jwks_invalid", message, hint=hint) from None
        if not found:
            raise rejected("jwks_invalid", "the key set holds no key for signatures", hint="check `use` of its keys")
        return found


def _library() -> Any:
    # Imported here, because it is an extra and loads the cryptography library.
    try:
        import jwt
    except ImportError:
        message = "JSON Web Tokens need PyJWT, which is not installed"
        raise rejected("extra_missing", message, hint="pip install 'tidemill[server]'") from None
    return jwt


def _claim(claims: Mapping[str, Any], path: str) -> Any:
    """The value of a claim, also of one within another: `realm_access.roles`."""
    if path in claims:
        return claims[path]
    found: Any = claims
    for part in path.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


# Sessions of browsers

SESSION_COOKIE = "tidemill_session"
CSRF_HEADER = "x-csrf-token"
SESSION_HOURS = 12.0


class _SessionBody(msgspec.Struct, frozen=True, array_like=True):
    tenant: str
    name: str
    roles: tuple[str, ...]
    key_id: str
    expires_ms: int
    nonce: str


_SESSION = msgspec.json.Decoder(_SessionBody)


class Sessions:
    """Signed tokens for an HttpOnly cookie, each with a CSRF token for the headers of requests that change something.

    Servers that share a `secret` know each other's sessions; without one, those of a process end with it. A session
    does not outlive its credential, and its key is looked up at every request. Only those that are ended before their
    time are stored, by their ids.
    """

    def __init__(self, secret: str = "", hours: float = SESSION_HOURS) -> None:
        self._secret = secret.encode() or secrets.token_bytes(SECRET_BYTES)
        self._ms = int(hours * 3_600_000)

    def issue(self, principal: Principal, now_ms: int) -> str:
        expires = now_ms + self._ms if principal.expires_ms is None else min(now_ms + self._ms, principal.expires_ms)
        nonce = secrets.token_hex(8)
        body = _SessionBody(principal.tenant, principal.name, principal.roles, principal.key_id, expires, nonce)
        text = _encoded(msgspec.json.encode(body))
        return f"{text}.{_encoded(self._signature('session', text))}"

    def principal(self, token: str, now_ms: int) -> Principal:
        """Who a session belongs to. Raises Rejected (`session_invalid`)."""
        text, _, signature = token.partition(".")
        fits = len(token) <= TOKEN_LENGTH_MAX and self._fits("session", text, signature)
        body = _SESSION.decode(_decoded(text)) if fits else None
        if body is None or body.expires_ms <= now_ms:
            message = "the session has expired" if body is not None else "the session is not valid here"
            raise rejected("session_invalid", message, hint="sign in again")
        return Principal(
            tenant=body.tenant, name=body.name, roles=body.roles, key_id=body.key_id, expires_ms=body.expires_ms
        )

    @staticmethod
    def id_of(token: str) -> str:
        return hashlib.sha256(token.encode()).hexdigest()[:32]

    def csrf_token(self, token: str) -> str:
        return _encoded(self._signature("csrf", token))

    def check_csrf(self, token: str, given: str) -> None:
        """Refuse a request that does not carry the CSRF token of its session."""
        if not self._fits("csrf", token, given):
            hint = f"send the `csrf_token` of the session as the header {CSRF_HEADER}"
            raise rejected("csrf_invalid", "the request does not carry the CSRF token of its session", hint=hint)

    def _signature(self, purpose: str, text: str) -> bytes:
        return hmac.digest(self._secret, f"{purpose}\0{text}".encode(), hashlib.sha256)

    def _fits(self, purpose: str, text: str, signature: str) -> bool:
        return hmac.compare_digest(self._signature(purpose, text), _decoded(signature))


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    """The bytes of a text; none if it is not in the form that `_encoded` gives."""
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return b""
    return data if _encoded(data) == text else b""
