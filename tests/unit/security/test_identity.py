"""Roles, API keys, tokens and sessions: what is accepted, and that nothing else is."""

from __future__ import annotations

import base64
import builtins
import json
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from tidemill.ambient import wall_clock_ms
from tidemill.errors import Rejected
from tidemill.security import identity
from tidemill.security.identity import (
    JwtRules,
    JwtVerifier,
    Sessions,
    hash_of_key,
    id_of_key,
    new_key,
    same_key,
    tenant_of_key,
)
from tidemill.security.roles import (
    ANYONE,
    OPERATOR_TENANT,
    PERMISSIONS,
    ROLES,
    Principal,
    check_roles_of_key,
    check_tenant_name,
)

SECRET = "a secret of the tests, which is long enough"
SOON = 3_600


def code_of(refusal: pytest.ExceptionInfo[Rejected]) -> str:
    return refusal.value.code


# Roles


def test_each_role_may_what_those_below_it_may() -> None:
    assert all(ROLES["viewer"] <= granted for granted in ROLES.values())
    assert ROLES["admin"] == PERMISSIONS
    assert "runs:act" not in ROLES["author"] and "workflows:write" not in ROLES["operator"]
    assert "runs:patch" not in ROLES["operator"], "changing the graph of a run is writing a workflow"
    assert {"approvals:decide"} == ROLES["approver"] - ROLES["viewer"]


def test_only_admins_of_the_operators_own_tenant_manage_tenants() -> None:
    mine = Principal(tenant=OPERATOR_TENANT, name="ada", roles=("admin",))
    other = Principal(tenant="acme", name="bob", roles=("admin",))
    assert mine.may("tenants:write") and mine.may("keys:write")
    assert not other.may("tenants:write") and not other.may("tenants:read") and other.may("keys:write")
    assert Principal(tenant=OPERATOR_TENANT, name="eve", roles=("finance", "")).permissions == {ANYONE}


@pytest.mark.parametrize("roles", [[], (), "admin", None, ["root"], ["viewer", "admn"], [1]])
def test_roles_of_a_key_exist(roles: Any) -> None:
    with pytest.raises(Rejected) as refusal:
        check_roles_of_key(roles)
    assert {each.code for each in refusal.value.problems} == {"roles_invalid"}
    assert all(each.hint for each in refusal.value.problems)


@pytest.mark.parametrize(
    "name", ["", "_system", "Acme", "a.b", "a_b", "-a", "a-", "a" * 64, "ä", "a\n", "a/b", "..", None, 7]
)
def test_names_of_tenants_are_checked(name: Any) -> None:
    with pytest.raises(Rejected) as refusal:
        check_tenant_name(name)
    assert code_of(refusal) == "tenant_name_invalid"


# Keys


def test_a_key_names_its_tenant_and_only_its_hash_is_kept() -> None:
    key = new_key("acme-eu")
    assert key.text.startswith("tm_acme-eu.") and id_of_key(key.text) == key.id and tenant_of_key(key.id) == "acme-eu"
    secret = key.text.removeprefix(f"tm_{key.id}_")
    assert len(base64.urlsafe_b64decode(secret + "=")) == 32
    assert secret.encode() not in key.hash and key.hash == hash_of_key(key.text)
    assert same_key(key.text, key.hash)
    assert new_key("acme-eu").text != key.text


def test_another_secret_id_or_tenant_does_not_fit_the_hash() -> None:
    key, other = new_key("acme"), new_key("acme")
    secret = key.text.removeprefix(f"tm_{key.id}_")
    assert not same_key(f"tm_{other.id}_{secret}", key.hash)
    assert not same_key(key.text.replace("acme", "other"), key.hash)
    assert not same_key(key.text[:-1], key.hash)
    assert not same_key(key.text + "A", key.hash)


@pytest.mark.parametrize(
    "text",
    [
        *("", "tm", "tm_", "tm__", "tm_acme.0123456789abcdef_", "tm_acme_x", "xx_acme.0123456789abcdef_s"),
        *(
            "tm_Acme.0123456789abcdef_s",
            "tm_.0123456789abcdef_s",
            "tm_acme.0123456789ABCDEF_s",
            "tm_-.0123456789abcdef_s",
        ),
        *("tm_acme.0123456789abcdef_" + "x" * 300, "tm_acme.0123456789abcdef_ü", "tm_a/../b.0123456789abcdef_s"),
    ],
)
def test_what_is_no_key_has_no_id(text: str) -> None:
    assert id_of_key(text) == ""


# Tokens


def token(
    key: Any = SECRET, algorithm: str | None = "HS256", headers: dict[str, Any] | None = None, **claims: Any
) -> str:
    now = wall_clock_ms() // 1_000
    body = {"sub": "ada", "tenant": "acme", "roles": ["operator", "finance"], "exp": now + SOON, **claims}
    body = {name: value for name, value in body.items() if value is not None}
    return jwt.encode(body, key, algorithm=algorithm, headers=headers)


def refused(verifier: JwtVerifier, text: str) -> str:
    with pytest.raises(Rejected) as refusal:
        verifier.principal(text, 0)
    return code_of(refusal)


def test_a_token_names_tenant_person_and_roles() -> None:
    found = JwtVerifier(JwtRules(secret=SECRET)).principal(token(), 0)
    assert (found.tenant, found.name, found.roles, found.key_id) == ("acme", "ada", ("operator", "finance"), "")
    assert found.may("runs:act") and not found.may("workflows:write")
    assert found.expires_ms is not None and found.expires_ms > wall_clock_ms()


def test_claims_have_the_names_that_the_operator_gives() -> None:
    rules = JwtRules(secret=SECRET, tenant_claim="https://x.example/org", roles_claim="realm.roles", name_claim="email")
    given = {"https://x.example/org": "globex", "realm": {"roles": "viewer author"}, "email": "ada@globex.example"}
    found = JwtVerifier(rules).principal(token(**given), 0)
    assert (found.tenant, found.name, found.roles) == ("globex", "ada@globex.example", ("viewer", "author"))


@pytest.mark.parametrize(
    ("claims", "code"),
    [
        ({"exp": 1_000}, "token_expired"),
        ({"exp": None}, "credential_invalid"),
        *(({"exp": exp}, "credential_invalid") for exp in (1e308, 1e300, float("inf"), float("nan"), "9" * 400)),
        *(({name: float("inf")}, "credential_invalid") for name in ("nbf", "iat")),
        ({"nbf": 99_999_999_999}, "credential_invalid"),
        ({"iss": "https://evil.example"}, "credential_invalid"),
        ({"iss": None}, "credential_invalid"),
        ({"aud": "another service"}, "credential_invalid"),
        ({"aud": None}, "credential_invalid"),
        ({"tenant": None}, "credential_invalid"),
        ({"tenant": "../acme"}, "credential_invalid"),
        ({"tenant": ["acme"]}, "credential_invalid"),
        ({"sub": ""}, "credential_invalid"),
        ({"sub": "key:ci"}, "credential_invalid"),
        ({"sub": "schedule:x"}, "credential_invalid"),
        ({"sub": "user:key:ci"}, "credential_invalid"),
        ({"sub": " key:ci"}, "credential_invalid"),
        ({"sub": "a\x1bb"}, "credential_invalid"),
    ],
)
def test_a_token_that_is_not_meant_is_refused(claims: dict[str, Any], code: str) -> None:
    verifier = JwtVerifier(JwtRules(secret=SECRET, issuer="https://id.example", audience="tidemill"))
    good = {"iss": "https://id.example", "aud": "tidemill"}
    assert verifier.principal(token(**good), 0).name == "ada"
    assert refused(verifier, token(**{**good, **claims})) == code


def test_roles_that_are_no_list_of_names_are_none() -> None:
    verifier = JwtVerifier(JwtRules(secret=SECRET))
    for roles in (None, {"admin": True}, 7, [7, {"admin": 1}]):
        assert verifier.principal(token(roles=roles), 0).roles == ()


@pytest.fixture(scope="module")
def rsa_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def pem(key: rsa.RSAPrivateKey) -> bytes:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(serialization.Encoding.PEM, form)


def key_set(**keys: Any) -> bytes:
    """A JWKS file of public keys by their ids."""
    kinds: dict[type, Any] = {
        rsa.RSAPrivateKey: jwt.algorithms.RSAAlgorithm,
        ec.EllipticCurvePrivateKey: jwt.algorithms.ECAlgorithm,
        ed25519.Ed25519PrivateKey: jwt.algorithms.OKPAlgorithm,
    }
    found = []
    for kid, key in keys.items():
        kind = next(made for base, made in kinds.items() if isinstance(key, base))
        found.append({**kind.to_jwk(key.public_key(), as_dict=True), "kid": kid, "use": "sig"})
    return json.dumps({"keys": found}).encode()


def test_tokens_of_a_key_set_are_verified_with_the_key_they_name(rsa_key: rsa.RSAPrivateKey) -> None:
    curve, edwards = ec.generate_private_key(ec.SECP256R1()), ed25519.Ed25519PrivateKey.generate()
    verifier = JwtVerifier(JwtRules(), lambda: key_set(one=rsa_key, two=curve, three=edwards))
    for key, algorithm, kid in (
        (rsa_key, "RS256", "one"),
        (rsa_key, "PS384", "one"),
        (curve, "ES256", "two"),
        (edwards, "EdDSA", "three"),
    ):
        assert verifier.principal(token(key, algorithm, {"kid": kid}), 0).name == "ada"
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    assert refused(verifier, token(other, "RS256", {"kid": "one"})) == "credential_invalid"
    assert refused(verifier, token(rsa_key, "RS256", {"kid": "two"})) == "credential_invalid"
    assert refused(verifier, token(rsa_key, "RS256")) == "credential_invalid"


def _hs256_with(key: bytes, kid: str) -> str:
    """A token that takes a public key for the secret of HS256; the library refuses to make one."""
    import hashlib
    import hmac

    def part(value: Any) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    claims = {"sub": "eve", "tenant": "acme", "roles": ["admin"], "exp": wall_clock_ms() // 1_000 + SOON}
    text = f"{part({'alg': 'HS256', 'typ': 'JWT', 'kid': kid})}.{part(claims)}"
    signature = base64.urlsafe_b64encode(hmac.digest(key, text.encode(), hashlib.sha256)).rstrip(b"=").decode()
    return f"{text}.{signature}"


def test_the_token_does_not_choose_the_algorithm(rsa_key: rsa.RSAPrivateKey) -> None:
    by_key = JwtVerifier(JwtRules(), lambda: key_set(one=rsa_key))
    by_secret, by_long = JwtVerifier(JwtRules(secret=SECRET)), JwtVerifier(JwtRules(secret=SECRET + SECRET))
    unsigned = token("", "none", {"kid": "one"})
    assert refused(by_key, unsigned) == refused(by_secret, unsigned) == "credential_invalid"
    assert refused(by_key, unsigned.rstrip(".") + ".x") == "credential_invalid"
    assert refused(by_key, _hs256_with(pem(rsa_key), "one")) == "credential_invalid"
    assert refused(by_key, _hs256_with(key_set(one=rsa_key), "one")) == "credential_invalid"
    assert refused(by_secret, token(rsa_key, "RS256", {"kid": "one"})) == "credential_invalid"
    assert refused(by_long, token(SECRET + SECRET, "HS512")) == "credential_invalid"
    assert by_secret.principal(token(), 0).name == "ada"


@pytest.mark.parametrize("text", ["", "a", "a.b.c", "..", "\x00.\x00.\x00", "é.é.é", "A" * 20_000])
def test_what_is_no_token_is_refused(text: str) -> None:
    assert refused(JwtVerifier(JwtRules(secret=SECRET)), text) == "credential_invalid"


def test_a_key_set_is_read_again_for_an_unknown_key_but_not_for_each(rsa_key: rsa.RSAPrivateKey) -> None:
    reads: list[bytes] = []
    sets = [key_set(old=rsa_key), key_set(old=rsa_key, new=rsa_key)]

    def read() -> bytes:
        reads.append(sets[min(len(reads), 1)])
        return reads[-1]

    verifier = JwtVerifier(JwtRules(), read)
    assert verifier.principal(token(rsa_key, "RS256", {"kid": "old"}), 0).name == "ada"
    assert len(reads) == 1
    assert verifier.principal(token(rsa_key, "RS256", {"kid": "new"}), 1_000).name == "ada"
    for _ in range(10):
        assert refused(verifier, token(rsa_key, "RS256", {"kid": "unknown"})) == "credential_invalid"
    assert len(reads) == 2


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"keys": []}', b'{"keys": [{"kty": "RSA"}]}', b'{"keys": [7]}'])
def test_a_key_set_without_public_keys_is_refused(text: bytes) -> None:
    with pytest.raises(Rejected) as refusal:
        JwtVerifier(JwtRules(), lambda: text)
    assert code_of(refusal) == "jwks_invalid" and refusal.value.problems[0].hint


def test_symmetric_keys_in_a_key_set_are_refused() -> None:
    secret = base64.urlsafe_b64encode(SECRET.encode()).rstrip(b"=").decode()
    text = json.dumps({"keys": [{"kty": "oct", "k": secret, "kid": "one"}]}).encode()
    with pytest.raises(Rejected) as refusal:
        JwtVerifier(JwtRules(), lambda: text)
    assert code_of(refusal) == "jwks_invalid"


def test_a_key_set_cannot_name_another_algorithm_for_a_key(rsa_key: rsa.RSAPrivateKey) -> None:
    keys = json.loads(key_set(one=rsa_key))
    keys["keys"][0]["alg"] = "HS256"
    with pytest.raises(Rejected) as refusal:
        JwtVerifier(JwtRules(), lambda: json.dumps(keys).encode())
    assert code_of(refusal) == "jwks_invalid"


def test_a_missing_library_is_told_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *more: Any) -> Any:
        if name == "jwt":
            raise ImportError(name)
        return real(name, *more)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(Rejected) as refusal:
        JwtVerifier(JwtRules(secret=SECRET))
    assert code_of(refusal) == "extra_missing" and "tidemill[server]" in refusal.value.problems[0].hint


# Sessions

ADA = Principal(tenant="acme", name="key:ada", roles=("operator",), key_id="acme.0123456789abcdef")


def session_refused(sessions: Sessions, text: str, now_ms: int = 0) -> bool:
    with pytest.raises(Rejected) as refusal:
        sessions.principal(text, now_ms)
    return code_of(refusal) == "session_invalid"


def test_a_session_is_its_principal_until_it_ends() -> None:
    sessions = Sessions(SECRET, hours=1)
    text = sessions.issue(ADA, 1_000)
    found = sessions.principal(text, 1_000)
    assert (found.tenant, found.name, found.roles, found.key_id) == (ADA.tenant, ADA.name, ADA.roles, ADA.key_id)
    assert found.expires_ms == 1_000 + 3_600_000
    assert sessions.principal(text, 3_600_999) == found
    assert session_refused(sessions, text, 3_601_000)
    assert sessions.issue(ADA, 1_000) != text


def test_a_session_does_not_outlive_its_credential() -> None:
    ends = Principal(tenant="acme", name="ada", expires_ms=5_000)
    sessions = Sessions(hours=1)
    assert session_refused(sessions, sessions.issue(ends, 1_000), 5_000)


def test_sessions_are_signed() -> None:
    sessions = Sessions(SECRET)
    text = sessions.issue(ADA, 0)
    body, _, signature = text.partition(".")
    forged = base64.urlsafe_b64encode(base64.urlsafe_b64decode(body + "==").replace(b"operator", b"admin")).rstrip(b"=")
    for changed in (f"{forged.decode()}.{signature}", f"{body}.", body, "", ".", f"{text}=", f"{text}.x", "ü.ü"):
        assert session_refused(sessions, changed)
    assert session_refused(Sessions(), text) and session_refused(Sessions("another" * 8), text)
    assert Sessions(SECRET).principal(text, 0) == sessions.principal(text, 0)


def test_a_csrf_token_belongs_to_one_session() -> None:
    sessions = Sessions(SECRET)
    one, other = sessions.issue(ADA, 0), sessions.issue(ADA, 0)
    sessions.check_csrf(one, sessions.csrf_token(one))
    for given in ("", sessions.csrf_token(other), sessions.csrf_token(one)[:-1], one, one.partition(".")[2]):
        with pytest.raises(Rejected) as refusal:
            sessions.check_csrf(one, given)
        assert code_of(refusal) == "csrf_invalid"


def test_the_library_of_tokens_is_not_loaded_with_the_module() -> None:
    assert not hasattr(identity, "jwt")
