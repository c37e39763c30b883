//! What a configuration may and may not say.

use super::*;
use crate::failure::Failure;

fn read(file: &str, variables: &[(&str, &str)]) -> Result<Config, Vec<Failure>> {
    let mut problems = Problems::new("outhaul.toml");
    let mut tree = tree::parse(file).expect("the test's file is TOML");
    let variables = variables.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
    for stray in overrides::apply(&mut tree, variables) {
        problems.at(&Origin::Variable(stray.variable), &codes::STRAY_OVERRIDE, stray.message);
    }
    let variable = |name: &str| (name == "PW").then(|| "s3cret".to_owned());
    let around = Surroundings { variable: &variable, file: &|_| Err("no such file".into()) };
    for (_, node) in &mut tree {
        interpolate::interpolate(node, &around, &mut |node, why| problems.at(&node.origin, &codes::UNRESOLVED, why));
    }
    build::build(&tree, false, problems).map_err(|f| f.0)
}

fn refused(file: &str, variables: &[(&str, &str)]) -> Vec<String> {
    read(file, variables).expect_err("must be refused").iter().map(|f| format!("{} {}", f.code, f.message)).collect()
}

/// The one problem of a file that is right but for `extra`.
fn problem(extra: &str) -> String {
    let file = format!("[[outbox]]\nurl = \"sqlite:a.db\"\n{extra}");
    let found = refused(&file, &[]);
    assert_eq!(found.len(), 1, "{found:#?}");
    found[0].clone()
}

#[test]
fn two_destinations_are_not_the_same_place() {
    let two = |a: &str, b: &str| format!("[[destination]]\nname = \"a\"\n{a}\n[[destination]]\nname = \"b\"\n{b}\n");
    let file = |path: &str| format!("kind = \"file\"\npath = \"{path}\"");
    let inbox = |rest: &str| format!("kind = \"inbox\"\nurl = \"sqlite:i.db\"\n{rest}");
    let same =
        |first: &str, second: &str| problem(&two(first, second)).contains("destinations a and b are the same place");
    assert!(same(&file("x/y"), &file("./x//y")));
    let here = std::env::current_dir().unwrap();
    assert!(same(&file("x.jsonl"), &file(&here.join("src/../x.jsonl").display().to_string())));
    assert!(same(&inbox("consumer = \"c\""), &inbox("consumer = \"c\"")));
    assert!(same(&inbox("consumer = \"b\""), &inbox("")), "its own name is what a consumer is called");
    let server = |url: &str| format!("kind = \"inbox\"\nurl = \"{url}\"\nconsumer = \"c\"");
    assert!(same(&server("sqlite:i.db"), &server("sqlite:./i.db")));
    assert!(same(&server("mysql://a:b@h/i"), &server("mariadb://c@h/i?ssl-mode=required")));
    for (first, second) in [
        (file("-"), file("-")),
        (server("mysql://h/i"), server("mysql://h/j")),
        (file("x"), file("y")),
        (inbox(""), inbox("")),
    ] {
        let file = format!("[[outbox]]\nurl = \"sqlite:a.db\"\n{}", two(&first, &second));
        assert!(read(&file, &[]).is_ok(), "{file}");
    }
}

const WHOLE: &str = r#"
[relay]
instance = "one"
lease_ttl = "5s"
shutdown_limit = "10s"
send = "after-checkpoint"

[[outbox]]
name = "orders"
url = "mysql://relay:${PW}@127.0.0.1:3306/shop"
table_prefix = "shop_"
max_message_bytes = "1MiB"
columns.preset = "debezium"
columns.headers = "meta"
tls.required = true

[[destination]]
name = "points"
kind = "inbox"
url = "postgres://relay:${PW}@127.0.0.1/points"
consumer = "points"
send_limit = "1s"
on_dead = "continue"

[[destination]]
name = "trail"
kind = "file"
path = "trail.jsonl"
require_ack = "flushed"

[[route]]
topic = "order-*"
to = ["points", "trail"]

[[route]]
topic = "audit"
to = "trail"
rename = "audit.v1"
tag = "audited"
"#;

#[test]
fn a_whole_one() {
    let c = read(WHOLE, &[]).unwrap();
    assert_eq!(c.relay.settings.lease_ttl_ms, 5_000);
    assert_eq!(c.relay.settings.lease_interval_ms, 1_000);
    assert_eq!(c.relay.shutdown_limit_ms, 10_000);
    assert!(!c.relay.settings.send_ahead);
    let o = &c.outboxes[0];
    assert_eq!((o.name.as_str(), o.store.url.as_str()), ("orders", "mysql://relay:s3cret@127.0.0.1:3306/shop"));
    assert_eq!((o.store.outbox(), o.store.max_message_bytes), ("shop_outbox".into(), 1 << 20));
    assert!(o.store.tls.required);
    assert_eq!((o.store.columns.topic.as_str(), o.store.columns.headers.as_deref()), ("aggregatetype", Some("meta")));
    assert_eq!(o.store.columns.shard, None);
    assert_eq!(c.destinations[0].limits.send_limit_ms, 1_000);
    assert!(!c.destinations[0].limits.block_key);
    assert_eq!(c.destinations[1].require_ack, Some(AckLevel::Flushed));
    assert_eq!(c.routes().destinations("order-created").iter().count(), 2);
    assert_eq!(c.routes().destinations("audit").iter().collect::<Vec<_>>(), [DestinationIndex(1)]);
    let rewrites: Vec<_> = c.routes.iter().map(|route| route.rewrite().map(|r| (r.topic, r.tag))).collect();
    assert_eq!(rewrites, [None, Some((Some("audit.v1".into()), Some("audited".into())))]);
    assert!(!format!("{c:?}").contains("s3cret"), "a secret is shown");
}

#[test]
fn what_is_left_out_is_what_the_core_says() {
    let c = read("[[outbox]]\nurl = \"x.db\"\n[[destination]]\nname = \"t\"\nkind = \"stdout\"\n", &[]).unwrap();
    assert_eq!(c.relay.settings, Settings::default());
    assert_eq!(c.destinations[0].limits, LaneLimits::default());
    let standard = StoreOptions::new("x.db");
    let store = &c.outboxes[0].store;
    assert_eq!(store.columns, standard.columns);
    assert_eq!(store.tls, standard.tls);
    assert_eq!(
        (store.max_message_bytes, store.connect_timeout, store.statement_timeout, store.lock_timeout),
        (standard.max_message_bytes, standard.connect_timeout, standard.statement_timeout, standard.lock_timeout)
    );
    assert_eq!((store.outbox(), &store.table_prefix), (standard.outbox(), &standard.table_prefix));
}

#[test]
fn unknown_keys_with_line_and_suggestion() {
    let p = problem("[relay]\nlease_tll = \"3s\"\n");
    assert_eq!(p, "OUT-3003 outhaul.toml line 4: there is no key lease_tll in relay; did you mean lease_ttl?");
    let p = problem("[relai]\n");
    assert_eq!(p, "OUT-3003 outhaul.toml line 3: there is no section relai; did you mean relay?");
    assert!(
        problem("columns.topik = \"x\"\n")
            .contains("line 3: there is no key columns.topik in outbox; did you mean columns.topic?")
    );
    let p = problem("[[destination]]\nname = \"t\"\nkind = \"file\"\npath = \"x\"\nurl = \"y\"\n");
    assert!(p.starts_with("OUT-3003 outhaul.toml line 7: there is no key url in destination of kind file"), "{p}");
    let top = refused("url = \"sqlite:a.db\"\n", &[]);
    assert!(top[0].contains("url is a key of outbox"), "{top:?}");
}

#[test]
fn values_that_do_not_fit() {
    for (extra, part) in [
        ("[relay]\nlease_ttl = 5\n", "lease_ttl of relay takes a length of time"),
        ("[relay]\nlease_ttl = \"5 weeks\"\n", "\"5 weeks\" is not"),
        ("[relay]\nlease_ttl = \"10ms\"\n", "at least 1s"),
        ("[relay]\npoll_rows = 0\n", "from 1 to 100000"),
        ("[relay]\nsend = \"later\"\n", "one of \"ahead\", \"after-checkpoint\""),
        ("[relay]\nlease_ttl = \"9s\"\nlease_interval = \"4s\"\n", "a third of lease_ttl"),
        ("[relay]\nrescan_min = \"80s\"\n", "above rescan_max"),
        ("[outbox]\n", ""),
    ] {
        if extra == "[outbox]\n" {
            assert!(refused("[outbox]\nurl = \"x.db\"\n", &[])[0].contains("written as [[outbox]]"));
            continue;
        }
        let p = problem(extra);
        assert!(p.starts_with("OUT-3005 outhaul.toml line ") && p.contains(part), "{p}");
    }
    assert!(problem("[[route]]\ntopic = \"a\"\nto = []\n").contains("it is empty"));
    let route = |rest: &str| {
        let points = "[[destination]]\nname = \"points\"\nkind = \"stdout\"\n";
        problem(&format!("{points}[[route]]\ntopic = \"a\"\nto = [\"points\"]\n{rest}\n"))
    };
    assert!(route("rename = \"b*\"").contains("a `*` in `rename`"));
    assert!(route("tag = \"a b\"").contains("one word"));
    assert!(problem("[[outbox]]\nname = \"b\"\n").starts_with("OUT-3004 outhaul.toml line 3: outbox has no url"));
    let large = refused("[[outbox]]\nurl = \"x.db\"\nmax_message_bytes = \"65MiB\"\n", &[]);
    assert!(large[0].contains("at most 64MiB; \"65MiB\" is not"), "{large:?}");
    let url = refused("[[outbox]]\nurl = \"gopher://u:${PW}@x\"\n", &[]);
    assert!(url[0].starts_with("OUT-1013 ") && !url[0].contains("s3cret"), "{url:?}");
    let kept = refused("[[outbox]]\nurl = \"x.db\"\n[relay]\nlease_ttl = \"${PW}\"\n", &[]);
    assert!(!kept[0].contains("s3cret"), "{kept:?}");
}

#[test]
fn a_request_ends_before_the_send_that_it_is_a_part_of() {
    let of = |more: &str| {
        let kind = "kind = \"rocketmq\"\nnamesrv = \"127.0.0.1:9876\"\n";
        format!("[[outbox]]\nurl = \"x.db\"\n[[destination]]\nname = \"mq\"\n{kind}{more}")
    };
    let limit = |more: &str| read(&of(more), &[]).unwrap().destinations[0].settings["request_limit_ms"].as_u64();
    assert_eq!(limit(""), None);
    assert_eq!(limit("send_limit = \"2s\"\n"), Some(1_600));
    assert_eq!(limit("send_limit = \"2s\"\nrequest_limit_ms = 1_900\n"), Some(1_900));
    let p = refused(&of("send_limit = \"2s\"\nrequest_limit_ms = 2_000\n"), &[]).join("\n");
    assert!(p.contains("OUT-3005") && p.contains("request_limit_ms is 2000 ms, send_limit is 2000 ms"), "{p}");
}

#[test]
fn what_must_hold_between_the_parts() {
    let destination = |name: &str, more: &str| format!("[[destination]]\nname = \"{name}\"\nkind = \"stdout\"\n{more}");
    let p = problem(&destination("t", "send_limit = \"10s\"\n"));
    assert!(
        p.starts_with(
            "OUT-3010 outhaul.toml line 6: the send_limit of destination t is 10000 ms, lease_ttl is 10000 ms"
        ),
        "{p}"
    );
    let many: String = (0..65).map(|n| destination(&format!("d{n}"), "")).collect();
    assert!(problem(&many).starts_with("OUT-3011 "));
    let p = problem(&(destination("points", "") + "[[route]]\ntopic = \"*\"\nto = [\"point\"]\n"));
    assert_eq!(
        p,
        "OUT-3009 outhaul.toml line 8: a route goes to \"point\", which is no destination; did you mean points?"
    );
    assert!(problem(&(destination("t", "") + &destination("t", ""))).starts_with("OUT-3008 "));
    assert!(problem(&destination("-", "")).starts_with("OUT-3005 "));
    assert!(problem("[[outbox]]\nurl = \"b.db\"\n").starts_with("OUT-3008 "));
    let two = "mode = \"status\"\n[[route]]\ntopic = \"*\"\nto = [\"a\", \"b\"]\n";
    let told =
        refused(&format!("[[outbox]]\nurl = \"a.db\"\n{two}{}", destination("a", "") + &destination("b", "")), &[]);
    assert!(matches!(&told[..], [one] if one.starts_with("OUT-3012 outhaul.toml line 6")), "{told:?}");
    assert!(problem("[admin]\nlisten = \"7070\"\n").starts_with("OUT-3005 "));
    assert!(problem("[[destination]]\nname = \"k\"\nkind = \"kafka\"\n").starts_with("OUT-2001 outhaul.toml line 5: "));
    assert!(problem("[[destination]]\nname = \"k\"\nkind = \"kafak\"\n").starts_with("OUT-2002 "));
    assert!(problem("[[destination]]\nname = \"k\"\nkind = \"file\"\n").starts_with("OUT-2003 "));
    assert!(refused("", &[])[0].starts_with("OUT-3007 "));
}

#[test]
fn keys_of_a_status_table() {
    let file = |mode: &str, more: &str| format!("[[outbox]]\nurl = \"a.db\"\nmode = \"{mode}\"\n{more}");
    let table = |more: &str| read(&file("status", more), &[]).unwrap().outboxes[0].store.status.clone().unwrap();
    let t = table("");
    assert_eq!((t.table.as_str(), t.key, t.headers, t.dead, t.archive), ("outbox", None, None, None, None));
    let t = table(
        "table = \"m\"\ncolumns.msg_key = \"k\"\nstatus.dead = \"D\"\nstatus.archive = \"a\"\nstatus.sent_at = \"none\"\n",
    );
    assert_eq!((t.table.as_str(), t.key.as_deref(), t.dead.as_deref(), t.sent_at), ("m", Some("k"), Some("D"), None));
    assert_eq!(t.archive.unwrap().after.as_secs(), 7 * 24 * 3_600);
    assert!(read(&file("move", ""), &[]).unwrap().outboxes[0].store.status.is_none());
    for (mode, wrong) in [
        ("move", "status.column = \"s\""),
        ("status", "columns.seq = \"s\""),
        ("status", "columns.available_at = \"s\""),
        ("status", "transactions.fallback = true"),
        ("status", "status.sent = \"pending\""),
        ("status", "status.interval = \"6s\""),
        ("status", "status.archive_after = \"6d\""),
        ("status", "status.archive = \"a\"\nstatus.purge_after = \"6d\""),
    ] {
        let told = refused(&file(mode, &format!("{wrong}\n")), &[]);
        assert!(matches!(&told[..], [one] if one.starts_with("OUT-3005 ")), "{wrong}: {told:?}");
    }
}

#[test]
fn limits_of_a_destination() {
    let file =
        |more: &str| format!("[[outbox]]\nurl = \"a.db\"\n[[destination]]\nname = \"t\"\nkind = \"stdout\"\n{more}");
    let limits = |more: &str| read(&file(more), &[]).unwrap().destinations[0].limits.clone();
    assert_eq!((limits("").rate_milli, limits("").concurrency), (None, None));
    for (text, milli) in [("500", 500_000), ("0.5", 500), ("\"500/s\"", 500_000), ("1_000.25", 1_000_250)] {
        assert_eq!(limits(&format!("rate = {text}\n")).rate_milli, Some(milli), "{text}");
    }
    let l = limits("concurrency = 4\nmax_queued = 100\nmax_queued_bytes = \"1MiB\"\n");
    assert_eq!((l.concurrency, l.max_queued, l.max_queued_bytes), (Some(4), 100, 1 << 20));
    let by_variable = read(&file(""), &[("OUTHAUL__DESTINATION__T__RATE", "0.25")]).unwrap();
    assert_eq!(by_variable.destinations[0].limits.rate_milli, Some(250));
    let takes = "takes a number of messages a second, such as 500 or 0.5, from 0.001 to 1000000";
    for (text, told) in [("0", "\"0\""), ("-1", "\"-1\""), ("-0.5", "\"-0.5\""), ("nan", "\"nan\""), ("inf", "\"inf\"")]
    {
        let p = refused(&file(&format!("rate = {text}\n")), &[]).join("\n");
        assert_eq!(p, format!("OUT-3005 outhaul.toml line 6: rate of destination {takes}; {told} is not"));
    }
    for wrong in ["rate = \"fast\"", "rate = true", "concurrency = 0", "concurrency = -1", "concurrency = 1.5"] {
        assert!(refused(&file(wrong), &[])[0].starts_with("OUT-3005 "), "{wrong}");
    }
}

#[test]
fn all_of_them_together() {
    let file = "[relay]\nlease_tll = 1\n[[outbox]]\nurl = \"mysql://u:${NOPE}@h/d\"\nmode = \"status\"\n[[route]]\ntopic = \"*\"\nto = [\"x\", \"x\"]\n";
    let mut codes: Vec<String> =
        refused(file, &[("OUTHAUL__RELAX__X", "1")]).iter().map(|p| p[..8].to_owned()).collect();
    codes.sort();
    codes.dedup();
    assert_eq!(codes, ["OUT-3003", "OUT-3006", "OUT-3009", "OUT-3012", "OUT-3016"]);
}

#[test]
fn every_key_by_a_variable() {
    let c = read(
        WHOLE,
        &[
            ("OUTHAUL__RELAY__LEASE_TTL", "20s"),
            ("OUTHAUL__OUTBOX__ORDERS__URL", "sqlite:${PW}.db"),
            ("OUTHAUL__OUTBOX__ORDERS__TLS__REQUIRED", "false"),
            ("OUTHAUL__DESTINATION__TRAIL__MAX_BATCH", "7"),
            ("OUTHAUL__DESTINATION__TRAIL__PATH", "77"),
            ("OUTHAUL__ROUTE__1__TO", "trail, points"),
            ("OUTHAUL__DESTINATION__2__NAME", "out"),
            ("OUTHAUL__DESTINATION__2__KIND", "stdout"),
        ],
    )
    .unwrap();
    assert_eq!(c.relay.settings.lease_ttl_ms, 20_000);
    assert_eq!(c.outboxes[0].store.url, "sqlite:s3cret.db");
    assert!(!c.outboxes[0].store.tls.required);
    assert_eq!(c.destinations[1].limits.max_batch, 7);
    assert_eq!(c.destinations[1].settings["path"], "77");
    assert_eq!(c.routes[1].to, ["trail", "points"]);
    assert_eq!(c.destinations[2].kind, "stdout");
    let p = refused(WHOLE, &[("OUTHAUL__RELAY__LEASE_TLL", "20s")]);
    assert_eq!(
        p,
        ["OUT-3003 variable OUTHAUL__RELAY__LEASE_TLL: there is no key lease_tll in relay; did you mean lease_ttl?"]
    );
}

#[test]
fn a_kind_has_no_key_that_every_destination_has() {
    for kind in outhaul_sink::registry::built() {
        for key in outhaul_sink::registry::keys(kind).unwrap() {
            assert!(keys::DESTINATION.iter().all(|k| k.name != key.name), "{kind} {}", key.name);
        }
    }
}

#[test]
fn arguments_stand_for_a_file() {
    let to = ["file:a.jsonl".to_owned(), "stdout:".to_owned()];
    let around = Surroundings { variable: &|_| None, file: &|_| Err(String::new()) };
    let sources = Sources { file: None, db: Some("sqlite:x.db"), to: &to, inbox: false };
    let c = load_with(sources, vec![("OUTHAUL__OUTBOX__MAIN__TABLE_PREFIX".into(), "p_".into())], &around).unwrap();
    assert_eq!((c.outboxes[0].name.as_str(), c.outboxes[0].store.outbox().as_str()), (DB_NAME, "p_outbox"));
    assert_eq!(c.destinations.iter().map(|d| d.name.as_str()).collect::<Vec<_>>(), ["file", "stdout-2"]);
    assert_eq!(c.routes().destinations("x").iter().count(), 2);
    let refused = |to: &str| {
        let to = [to.to_owned()];
        load_with(Sources { file: None, db: Some("x.db"), to: &to, inbox: false }, vec![], &around).unwrap_err().0[0]
            .code
            .clone()
    };
    assert_eq!(refused("trail.jsonl"), "OUT-3014");
    let to = ["rocketmq://a:9876,b:9876".to_owned()];
    let c = load_with(Sources { file: None, db: Some("sqlite:x.db"), to: &to, inbox: false }, vec![], &around).unwrap();
    assert_eq!(c.destinations[0].settings["namesrv"], "a:9876,b:9876");
    assert_eq!(refused("rocketmq://"), "OUT-2003");
    assert_eq!(refused("kafka:x"), "OUT-2001");
}

#[test]
fn a_file_that_is_not_there() {
    let around = Surroundings { variable: &|_| None, file: &|_| Err(String::new()) };
    let none = Path::new("/nonexistent/outhaul.toml");
    let code = |sources, variables| load_with(sources, variables, &around).unwrap_err().0[0].code.clone();
    assert_eq!(code(Sources { file: Some(none), ..Sources::default() }, vec![]), "OUT-3001");
    // The test runs in the crate's folder, where there is no outhaul.toml.
    assert_eq!(code(Sources::default(), vec![]), "OUT-3001");
    let variables = vec![("OUTHAUL__OUTBOX__0__URL".to_owned(), "x.db".to_owned())];
    assert_eq!(load_with(Sources::default(), variables, &around).unwrap().outboxes[0].name, DB_NAME);
}
