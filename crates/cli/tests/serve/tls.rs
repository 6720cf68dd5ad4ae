//! TLS: admission of clients.

use std::fs;
use std::path::Path;

use extant_testkit::command::{run_any_status, tool};
use extant_testkit::{require, requires};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use crate::stand::{Stand, said};
use crate::support::run;

/// An authority, and certificates by it for a server at localhost and a client.
fn certificates(directory: &Path) {
    fs::create_dir_all(directory).unwrap();
    let write = |name: &str, text: String| fs::write(directory.join(name), text).unwrap();
    let authority_key = KeyPair::generate().unwrap();
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = authority.self_signed(&authority_key).unwrap();
    write("ca-cert.pem", certificate.pem());
    let issuer = Issuer::new(authority, authority_key);
    for who in ["server", "client"] {
        let key = KeyPair::generate().unwrap();
        let parameters = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let certificate = parameters.signed_by(&key, &issuer).unwrap();
        write(&format!("{who}-cert.pem"), certificate.pem());
        write(&format!("{who}-key.pem"), key.serialize_pem());
    }
}

/// A URI for clients that use TLS, with the certificates in `directory`.
fn with_certificates(uri: &str, directory: &Path) -> String {
    let uri = uri.replacen("nbd", "nbds", 1);
    format!(
        "{uri}&tls-certificates={}&tls-hostname=localhost",
        directory.display()
    )
}

#[test]
fn clients_are_admitted_by_certificate() {
    require!(requires::tool("nbdinfo"));
    let stand = Stand::new();
    stand.sparse("a.raw", 1);
    let (ours, theirs) = (stand.path("pki"), stand.path("others"));
    certificates(&ours);
    certificates(&theirs);
    fs::copy(ours.join("ca-cert.pem"), theirs.join("ca-cert.pem")).unwrap();
    let is_let_in = |uri: &str| {
        run_any_status(tool("nbdinfo").arg(uri))
            .unwrap()
            .status
            .success()
    };
    let creds = ["a.raw", "--tls-creds", "pki"];
    // Further arguments, and the clients admitted with them: by us, by others, in the clear.
    for (more, wanted) in [
        (&[][..], [true, false, false]),
        (&["--tls-any-client"], [true, true, false]),
        (&["--tls-optional"], [true, false, true]),
    ] {
        let serving = stand.serve(&[&creds[..], more].concat());
        let uri = serving.uri("a.raw");
        let by_us = with_certificates(&uri, &ours);
        let by_others = with_certificates(&uri, &theirs);
        assert_eq!(
            [&by_us, &by_others, &uri].map(|uri| is_let_in(uri)),
            wanted,
            "{more:?}"
        );
        let shown = said(tool("nbdinfo").arg(&by_us));
        assert!(shown.contains("with TLS"), "{shown}");
        let answer = serving.end();
        assert!(answer.stdout.starts_with("nbds+unix:///a.raw?"), "{answer}");
    }
}

#[test]
fn credentials_that_are_missing_or_pre_shared_are_refused() {
    let stand = Stand::new();
    stand.sparse("a.raw", 1);
    fs::create_dir(stand.path("pki")).unwrap();
    let words = ["a.raw", "--socket", "s", "--tls-creds", "pki"];
    run(&mut stand.command(&words)).refused(4, &["server-cert.pem"]);
    fs::write(stand.path("pki/keys.psk"), "user:00").unwrap();
    run(&mut stand.command(&words)).refused(5, &["keys.psk", "pre-shared keys"]);
}
