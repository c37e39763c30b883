//! Passwords and certificates.

use outhaul_store::{StoreErrorKind, StoreOptions, Tls};
use outhaul_testkit::servers::{self, Flavour, OwnServer};

/// MySQL's caching_sha2_password, for a user that the server has not met: the password travels encrypted with the
/// server's key, without TLS. MariaDB's own way there.
pub async fn a_password_is_checked_over_plain_tcp(flavour: Flavour) {
    let mut database = servers::create(flavour).await;
    let name = database.name().to_owned();
    let url = database.restricted_user(&[&format!("ALL ON {name}.*")]).await;
    if flavour == Flavour::MySql {
        let plugin = "SELECT plugin FROM mysql.user WHERE CONCAT(user, '@%') = CONCAT(user, '@', host) AND user LIKE 'u%' ORDER BY password_last_changed DESC LIMIT 1";
        assert_eq!(database.query_text(plugin).await, "caching_sha2_password");
    }
    for _ in 0..2 {
        // The second time from the server's cache.
        let store = outhaul_store::open(StoreOptions::new(url.clone())).await.expect("open");
        assert_eq!(store.inspect().await.expect_err("no tables").kind, StoreErrorKind::NotInitialised);
        store.close().await;
    }
    let wrong = url.replace(":narrow@", ":wr0ng@");
    let error = outhaul_store::open(StoreOptions::new(wrong)).await.err().expect("a wrong password");
    assert_eq!(error.kind, StoreErrorKind::Authentication, "{error}");
    assert!(!error.message.contains("wr0ng"));
    let error =
        outhaul_store::open(StoreOptions::new(format!("{url}_not_there"))).await.err().expect("no such database");
    assert!(matches!(error.kind, StoreErrorKind::Permission | StoreErrorKind::Configuration), "{error}");
}

/// TLS with an authority of one's own: trusted when it is named, refused when it is not, or when it is another one.
pub async fn a_custom_authority_is_trusted(flavour: Flavour) {
    let server = OwnServer::start(flavour, &["tls"]).await;
    let mut database = server.database().await;
    let name = database.name().to_owned();
    let url = database.restricted_user(&[&format!("ALL ON {name}.*")]).await;
    let user = url.split("//").nth(1).and_then(|rest| rest.split(':').next()).expect("a user").to_owned();
    database.execute(&format!("ALTER USER '{user}'@'%' REQUIRE SSL")).await;
    let with = |tls: Tls, url: &str| outhaul_store::open(StoreOptions { tls, ..StoreOptions::new(url) });
    if flavour == Flavour::MySql {
        // The MySQL that the tests have is linked with an OpenSSL that offers no ECDHE, and rustls knows nothing older.
        let named = Tls { required: true, ca_file: Some(server.ca_file()), insecure: false };
        let error = with(named, &url).await.err().expect("no cipher in common");
        assert!(error.kind == StoreErrorKind::Configuration && error.message.contains("ECDHE"), "{error}");
        return;
    }
    let named = Tls { required: true, ca_file: Some(server.ca_file()), insecure: false };
    let store = with(named.clone(), &url).await.expect("open");
    assert_eq!(store.inspect().await.expect_err("no tables").kind, StoreErrorKind::NotInitialised);
    store.close().await;
    let in_url = format!("{url}?ssl-mode=REQUIRED&ssl-ca={}", server.ca_file().display());
    with(Tls::default(), &in_url).await.expect("open").close().await;
    with(Tls { insecure: true, ..Tls { required: true, ..Tls::default() } }, &url).await.expect("open").close().await;
    // Not trusted: the built-in authorities, and another one's file.
    let error = with(Tls { required: true, ..Tls::default() }, &url).await.err().expect("an unknown authority");
    assert_eq!(error.kind, StoreErrorKind::Configuration, "{error}");
    let missing = Tls { ca_file: Some("/nowhere/ca.pem".into()), ..named };
    let error = with(missing, &url).await.err().expect("no such file");
    assert_eq!(error.kind, StoreErrorKind::Configuration, "{error}");
    // Without TLS the server refuses this user.
    let error = with(Tls::default(), &url).await.err().expect("TLS is demanded");
    assert!(matches!(error.kind, StoreErrorKind::Authentication | StoreErrorKind::Configuration), "{error}");
}
