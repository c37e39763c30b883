//! Any bytes, read as stored messages and as a batch, with bodies of any compression.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use rocketmq_remoting::message::{Compression, Properties, StoredMessage, decode_batch, decompress};

fuzz_target!(|bytes: &[u8]| {
    let bytes = Bytes::copy_from_slice(bytes);
    for message in StoredMessage::read_all(bytes.clone()).unwrap_or_default() {
        let _ = (format!("{message:?}"), message.body_within(1 << 20), message.unwrap_batch());
    }
    let _ = decode_batch(bytes.clone());
    for compression in [Compression::Zlib, Compression::Lz4, Compression::Zstd] {
        if let Ok(body) = decompress(&bytes, compression, 1 << 16) {
            assert!(body.len() <= 1 << 16);
        }
    }
    let properties = Properties::parse(&String::from_utf8_lossy(&bytes));
    if let Ok(text) = properties.encode() {
        assert_eq!(Properties::parse(&text), properties);
    }
});
