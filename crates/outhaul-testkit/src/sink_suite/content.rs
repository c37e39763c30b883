//! What a message may hold.

use bytes::Bytes;
use outhaul_sink::Outcome;

use super::{Destination, Messages, assert_holds, deliver, started};

/// Payloads, headers, keys and topics of all sorts.
pub async fn anything_comes_back_as_it_was(destination: &dyn Destination) {
    let sink = started(destination).await;
    let mut messages = Messages::default();
    let every_byte: Vec<u8> = (0..=255).collect();
    let payloads: [&[u8]; 20] = [
        b"",
        b" ",
        b"\n",
        b"\0",
        b"plain text",
        &every_byte,
        b"\xff\xfe",
        b"{\"a\": [1, 2.50, true, null]}",
        "{\"name\": \"caf\u{e9} \u{1f600} \u{2028}\"}".as_bytes(),
        b"{\"broken\": ",
        b"\"\\ud800\"",
        b"1e999",
        b"00012",
        b"18446744073709551617",
        b"null",
        b"'; DROP TABLE inbox_message; --",
        b"\\",
        b"\\x41",
        b"\xef\xbb\xbf{}",
        "\u{feff}\u{200b}".as_bytes(),
    ];
    let mut all: Vec<_> =
        payloads.into_iter().map(|p| messages.of(|row| row.payload = Bytes::copy_from_slice(p))).collect();
    for headers in [
        "{}",
        "{\"outhaul-trace\": \"00-4bf92f\", \"Content-Type\": \"application/json\"}",
        "{\"quote\\\"d\": \"line\\nbreak \\\\ \u{1f600}\", \"\": \"\"}",
        "{\n  \"pretty\": \"yes\"\n}",
    ] {
        all.push(messages.of(|row| row.headers = Some(headers.into())));
    }
    for text in ["é\u{1f600}\u{2028}", "a b", "\"quoted\"", "back\\slash", "percent%_", "tab\tline\n"] {
        all.push(messages.of(|row| row.key = Some(text.into())));
        all.push(messages.of(|row| row.topic = text.into()));
    }
    all.push(messages.of(|row| row.id = "i".repeat(64)));
    all.push(messages.of(|row| row.id = "é\"\\".into()));
    all.push(messages.of(|row| row.topic = "t".repeat(255)));
    all.push(messages.of(|row| row.key = Some("k".repeat(255))));
    all.push(messages.of(|row| row.created_at_us = 0));
    all.push(messages.of(|row| row.created_at_us = 253_402_300_799_999_999));
    let (all, beyond): (Vec<_>, Vec<_>) = all.into_iter().partition(|m| destination.takes(m));
    deliver(&*sink, &all).await;
    for message in beyond {
        let outcomes = sink.send(sink.slotting().slot(&message), &[message]).await;
        assert!(matches!(&*outcomes, [Outcome::Rejected(r)] if r.code.starts_with("OUT-")), "{outcomes:?}");
    }
    assert_holds(destination, &all).await;
    sink.close().await;
}

/// An empty key is a key.
pub async fn an_empty_key_is_not_the_same_as_none(destination: &dyn Destination) {
    let sink = started(destination).await;
    let mut messages = Messages::default();
    let all = [messages.keyed(""), messages.of(|_| ()), messages.keyed(""), messages.of(|_| ())];
    deliver(&*sink, &all).await;
    assert_holds(destination, &all).await;
    sink.close().await;
}

/// Four MiB, the default limit of the relay, of bytes that do not compress and are not text.
pub async fn a_large_message(destination: &dyn Destination) {
    let sink = started(destination).await;
    let mut messages = Messages::default();
    let mut state = 1u64;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    })
    .take(4 << 20)
    .collect();
    let large = |row: &mut outhaul_core::message::Row, bytes: &[u8]| {
        row.key = Some("large".into());
        row.payload = Bytes::copy_from_slice(bytes);
    };
    let text = vec![b'x'; 4 << 20];
    let all = [
        messages.keyed("large"),
        messages.of(|row| large(row, &noise)),
        messages.of(|row| large(row, &text)),
        messages.keyed("large"),
    ];
    deliver(&*sink, &all).await;
    assert_holds(destination, &all).await;
    sink.close().await;
}

/// Case, accents and trailing spaces make another id and another key.
pub async fn ids_and_keys_compare_by_bytes(destination: &dyn Destination) {
    let sink = started(destination).await;
    let mut messages = Messages::default();
    let mut all = Vec::new();
    for text in ["abc", "ABC", "abc ", " abc", "abç", "abc\u{327}", "ab", "abc  "] {
        all.push(messages.of(|row| row.id = text.into()));
        all.push(messages.keyed(text));
    }
    deliver(&*sink, &all).await;
    assert_holds(destination, &all).await;
    sink.close().await;
}
