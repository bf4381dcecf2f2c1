"""Keys of sites, and certificates for a hub that has none yet."""

import datetime
import io
import ipaddress
import os
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from fedstill.core.errors import UsageError

YEARS = 2


def make_key(path: Path) -> tuple[Path, Path]:
    """A site's key pair (elliptic curve P-384, OpenSSH's format): `path`, for its owner alone, and `path`.pub."""
    from cryptography.hazmat.primitives.asymmetric import ec

    return _write_pair(path, ec.generate_private_key(ec.SECP384R1()))


def make_person_key(path: Path) -> tuple[Path, Path]:
    """A person's key pair to sign experiments with (ed25519, OpenSSH's format): `path` and `path`.pub."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return _write_pair(path, Ed25519PrivateKey.generate())


def _write_pair(path: Path, key: Any) -> tuple[Path, Path]:
    """Write a private key and its public one; neither where one of the files is there already."""
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    public = path.with_name(path.name + ".pub")
    _free(public)
    _new(path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()), 0o600)
    line = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    _new(public, line + b" " + path.name.encode() + b"\n", 0o644)
    return path, public


def make_kit(path: Path, hub: str, ca: Path) -> tuple[Path, Path]:
    """Everything that the site `path`.name needs to join a hub, in `path`.tar, and its public key beside it.

    The kit holds the site's new private key, the authority's certificate, a policy to be adapted and a script that
    starts the site with its data, and with any other options of `fedstill site`.
    """
    try:
        authority = ca.read_bytes()
    except OSError as error:
        raise UsageError(f"--ca {ca}: {error.strerror}") from None
    target, name = path.with_name(path.name + ".tar"), path.name
    _free(target)
    with tempfile.TemporaryDirectory() as draft:
        private, public = make_key(Path(draft) / name)
        script = (
            "#!/bin/sh\n# sh start.sh DATA [--label outcome …]: this site with its data (table, .npz or image folder)\n"
            f"exec fedstill site --hub {hub} --ca ca.crt --key {name} --policy policy.toml --state state"
            ' --data "$@"\n'
        )
        files = {"ca.crt": authority, "policy.toml": POLICY.encode(), "start.sh": script.encode()}
        made = io.BytesIO()
        with tarfile.open(fileobj=made, mode="w") as tar:
            for file, content in {name: private.read_bytes(), **files}.items():
                entry = tarfile.TarInfo(f"{name}-kit/{file}")
                entry.size, entry.mode = len(content), 0o600
                tar.addfile(entry, io.BytesIO(content))
        _new(target, made.getvalue(), 0o600)
        _new(path.with_name(f"{name}.pub"), public.read_bytes(), 0o644)
    return target, path.with_name(f"{name}.pub")


POLICY = """# What this site takes part in; `fedstill site --policy policy.toml --explain` says what follows from it.
# methods = ["fedavg", "fedkf"]      # none named: all
least_batch = 8
least_samples = 32
least_sites = 2
turn_seconds = 3600
# approval = true                    # a person approves each experiment: fedstill site approve NUMBER
# signers = ["alice.pub"]            # only experiments that one of these signed
# partners = ["site-b.pub"]          # secure sums with these sites only, by keys that they signed
# [settings.lr]
# most = 0.5
"""


def make_certificates(folder: Path, hosts: list[str]) -> dict[str, Path]:
    """An authority of one's own and a hub's certificate for these hosts, signed by it: ca.crt, server.pem, server.key.

    The hub talks to itself over the same port, so 127.0.0.1 and localhost are always among the hosts.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    def name(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def begun(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=365 * YEARS))
        )

    authority, server = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    issuer = name("fedstill hub authority")
    used = dict.fromkeys(
        ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
         "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"), False,
    )  # fmt: skip
    key_id = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    root = (
        begun(issuer, issuer, authority)
        .add_extension(x509.BasicConstraints(True, 0), True)
        .add_extension(x509.KeyUsage(**{**used, "key_cert_sign": True, "crl_sign": True}), True)
        .add_extension(key_id, False)
        .sign(authority, hashes.SHA384())
    )
    names = [_alternative(host) for host in dict.fromkeys([*hosts, "localhost", "127.0.0.1"])]
    leaf = (
        begun(name(hosts[0] if hosts else "localhost"), issuer, server)
        .add_extension(x509.SubjectAlternativeName(names), False)
        .add_extension(x509.BasicConstraints(False, None), True)
        .add_extension(x509.KeyUsage(**{**used, "digital_signature": True}), True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(key_id), False)
        .sign(authority, hashes.SHA384())
    )
    made = {name: folder / name for name in ("ca.key", "ca.crt", "server.key", "server.pem")}
    for file in made.values():
        _free(file)
    private = (Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    _new(made["ca.key"], authority.private_bytes(*private), 0o600)
    _new(made["ca.crt"], root.public_bytes(Encoding.PEM), 0o644)
    _new(made["server.key"], server.private_bytes(*private), 0o600)
    _new(made["server.pem"], leaf.public_bytes(Encoding.PEM), 0o644)
    return made


def _alternative(host: str):  # type: ignore[no-untyped-def]
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def read_private(path: Path) -> Any:
    """A site's private key."""
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    try:
        return load_ssh_private_key(path.read_bytes(), password=None)
    except FileNotFoundError:
        raise UsageError(f"{path}: no such key; make one with: fedstill keys {path}") from None
    except ValueError as error:
        raise UsageError(f"{path}: not a private key ({error})") from None


def read_public(path: Path) -> bytes:
    """A site's public key, in the form in which Flower registers it."""
    from fedstill.flower.api.requests import key_bytes

    return key_bytes(read_public_key(path))


def read_public_key(path: Path) -> Any:
    """A site's public key."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    try:
        key = load_ssh_public_key(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{path}: not a public key of OpenSSH's format ({error})") from None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise UsageError(f"{path}: must be an elliptic-curve key, as `fedstill keys` makes")
    return key


def _free(path: Path) -> None:
    if path.exists():
        raise UsageError(f"{path}: exists already, and is not written over")


def _new(path: Path, content: bytes, mode: int) -> None:
    _free(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(content)
