use proptest::prelude::*;

use super::*;
use crate::code::{RequestCode, ResponseCode};
use crate::command::{FLAG_ANSWER, FLAG_ONE_WAY, Language, MAX_EXT_FIELDS};

/// A frame as a peer would send it, without its first four bytes.
fn frame(kind: u8, header: &[u8], body: &[u8]) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u32((u32::from(kind) << 24) | u32::try_from(header.len()).unwrap());
    out.extend_from_slice(header);
    out.extend_from_slice(body);
    out.freeze()
}

fn json(header: &str) -> Result<Command, CodecError> {
    decode(frame(0, header.as_bytes(), b"")).map(|(command, _)| command)
}

fn encoded(command: &Command, serialization: Serialization) -> Bytes {
    let mut out = BytesMut::new();
    encode(command, serialization, &mut out).unwrap();
    let whole = split_frame(&mut out, MAX_FRAME_BYTES).unwrap().unwrap();
    assert!(out.is_empty());
    whole
}

#[test]
fn a_json_frame_is_laid_out_as_netty_decoder_reads_it() {
    let command = Command::request(RequestCode::HeartBeat).with("a", "ä").with_body("body");
    let mut out = BytesMut::new();
    encode(&command, Serialization::Json, &mut out).unwrap();
    let header = r#"{"code":34,"language":"RUST","version":401,"opaque":0,"flag":0,"extFields":{"a":"ä"},"serializeTypeCurrentRPC":"JSON"}"#;
    let mut expected = Vec::new();
    expected.extend_from_slice(&u32::try_from(4 + header.len() + 4).unwrap().to_be_bytes());
    expected.extend_from_slice(&u32::try_from(header.len()).unwrap().to_be_bytes());
    expected.extend_from_slice(header.as_bytes());
    expected.extend_from_slice(b"body");
    assert_eq!(out, expected);
}

#[test]
fn a_binary_header_is_laid_out_as_rocketmq_serializable_reads_it() {
    let mut command = Command::request(RequestCode::SendMessageV2).with("a", "ä");
    command.opaque = -2;
    command.flag = FLAG_ONE_WAY;
    command.remark = Some("hi".into());
    let mut expected = vec![1, 0, 0, 32, 0x01, 0x36, 12, 0x01, 0x91, 0xFF, 0xFF, 0xFF, 0xFE, 0, 0, 0, 2];
    expected.extend_from_slice(&[0, 0, 0, 2, b'h', b'i', 0, 0, 0, 9, 0, 1, b'a', 0, 0, 0, 2, 0xC3, 0xA4]);
    assert_eq!(expected.len(), 4 + 32);
    assert_eq!(encoded(&command, Serialization::Binary), expected);
}

#[test]
fn a_json_header_may_have_more_less_or_other_than_expected() {
    let read = json(r#"{"code":0,"flag":1,"extFields":{"n":5,"t":true,"f":1.5,"none":null,"empty":""},"future":[{"a":1}],"remark":null}"#).unwrap();
    assert_eq!((read.code, read.is_answer(), read.language), (0, true, Language::Other));
    assert_eq!(read.ext.iter().collect::<Vec<_>>(), [("n", "5"), ("t", "true"), ("f", "1.5")]);
    assert_eq!(read.remark, None);
    assert_eq!(json(r#"{"code":0,"remark":"","extFields":null}"#).unwrap().remark, None);
    assert_eq!(json(r#"{"code":0,"language":"COBOL"}"#).unwrap().language, Language::Other);
    assert_eq!(json(r#"{"code":0,"language":12}"#).unwrap().language, Language::Rust);
    for bad in [
        r#"{"flag":1}"#,
        r#"{"code":"x"}"#,
        r#"{"code":3000000000}"#,
        r#"{"code":0,"extFields":{"a":{}}}"#,
        "",
        "[]",
        "{}x",
    ] {
        assert!(matches!(json(bad), Err(CodecError::Header(_))), "{bad}");
    }
}

#[test]
fn a_binary_header_without_texts_has_none() {
    let header = [0, 1, 99, 0, 1, 0, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 7, 0, 1, b'k', 0, 0, 0, 0];
    let (read, _) = decode(frame(1, &header, b"")).unwrap();
    assert_eq!((read.code, read.language, read.opaque), (1, Language::Unknown(99), 7));
    assert_eq!((read.remark, read.ext.len()), (None, 0));
    for end in 0..header.len() {
        assert!(matches!(decode(frame(1, &header[..end], b"")), Err(CodecError::Truncated(_))), "{end}");
    }
}

#[test]
fn what_is_no_frame_is_told_apart() {
    assert_eq!(decode(Bytes::from_static(&[0, 0, 0])), Err(CodecError::Truncated("header length")));
    assert_eq!(decode(Bytes::from_static(&[0, 0, 0, 1])), Err(CodecError::Truncated("header")));
    assert_eq!(decode(Bytes::from_static(&[7, 0, 0, 0])), Err(CodecError::SerializationUnknown(7)));
}

#[test]
fn too_many_fields_are_refused() {
    let fields = |n: usize| {
        let list: Vec<String> = (0..n).map(|i| format!("\"{i}\":\"x\"")).collect();
        format!(r#"{{"code":0,"extFields":{{{}}}}}"#, list.join(","))
    };
    assert_eq!(json(&fields(MAX_EXT_FIELDS)).unwrap().ext.len(), MAX_EXT_FIELDS);
    assert!(json(&fields(MAX_EXT_FIELDS + 1)).is_err());
}

#[test]
fn what_does_not_fit_leaves_the_buffer_alone() {
    let mut out = BytesMut::from(&b"before"[..]);
    let pop = Command::request(RequestCode::Unknown(200_050));
    assert!(matches!(encode(&pop, Serialization::Binary, &mut out), Err(CodecError::DoesNotFit(_))));
    let large = Command::request(RequestCode::SendBatchMessage).with_body(vec![0; MAX_FRAME_BYTES]);
    assert!(matches!(encode(&large, Serialization::Json, &mut out), Err(CodecError::FrameTooLarge { .. })));
    let wide = Command::request(RequestCode::SendBatchMessage).with("i", "x".repeat(MAX_FRAME_BYTES));
    assert!(matches!(encode(&wide, Serialization::Binary, &mut out), Err(CodecError::DoesNotFit(_))));
    assert_eq!(out, &b"before"[..]);
    encode(&pop, Serialization::Json, &mut out).unwrap();
    assert_eq!(&out[..6], b"before");
}

#[test]
fn frames_are_cut_where_they_end() {
    let mut buffer = BytesMut::from(&[0, 0, 0, 2, b'a', b'b', 0, 0][..]);
    assert_eq!(split_frame(&mut buffer, 10).unwrap(), Some(Bytes::from_static(b"ab")));
    assert_eq!(split_frame(&mut buffer, 10).unwrap(), None);
    buffer.extend_from_slice(&[0, 1]);
    assert_eq!(split_frame(&mut buffer, 10).unwrap(), None);
    buffer.extend_from_slice(b"c");
    assert_eq!(split_frame(&mut buffer, 10).unwrap(), Some(Bytes::from_static(b"c")));
    let mut long = BytesMut::from(&[0, 0, 0, 11][..]);
    assert_eq!(split_frame(&mut long, 10), Err(CodecError::FrameTooLarge { bytes: 11, limit_bytes: 10 }));
    let mut negative = BytesMut::from(&[0xFF; 8][..]);
    assert_eq!(
        split_frame(&mut negative, MAX_FRAME_BYTES),
        Err(CodecError::FrameTooLarge { bytes: 0xFFFF_FFFF, limit_bytes: MAX_FRAME_BYTES })
    );
}

#[test]
fn an_answer_carries_the_opaque_of_its_request() {
    let mut request = Command::request(RequestCode::GetConsumerRunningInfo);
    request.opaque = 77;
    let answer = Command::answer_to(&request, ResponseCode::RequestCodeNotSupported, None);
    assert_eq!((answer.opaque, answer.flag, answer.code), (77, FLAG_ANSWER, 3));
}

fn commands() -> impl Strategy<Value = Command> {
    let numbers = (any::<i16>(), any::<i16>(), any::<i32>(), any::<i32>(), 0u8..14);
    let fields = prop::collection::vec(("\\PC{1,12}", "[\\PC\u{1}\u{2}]{1,30}"), 0..12);
    let body = prop::collection::vec(any::<u8>(), 0..64);
    (numbers, prop::option::of("\\PC{1,30}"), fields, body).prop_map(
        |((code, version, opaque, flag, language), remark, fields, body)| {
            let mut command = Command::request(RequestCode::Unknown(i32::from(code))).with_body(body);
            command.version = i32::from(version);
            command.opaque = opaque;
            command.flag = flag;
            command.language = Language::from_number(language);
            command.remark = remark;
            for (name, value) in fields {
                command.ext.set(name, value);
            }
            command
        },
    )
}

proptest! {
    #[test]
    fn round_trip(command in commands(), binary: bool) {
        let serialization = if binary { Serialization::Binary } else { Serialization::Json };
        prop_assert_eq!(decode(encoded(&command, serialization)), Ok((command, serialization)));
    }

    #[test]
    fn frames_in_any_pieces(commands in prop::collection::vec(commands(), 1..5), piece in 1usize..60) {
        let mut bytes = BytesMut::new();
        for command in &commands {
            encode(command, Serialization::Json, &mut bytes).unwrap();
        }
        let (mut buffer, mut read) = (BytesMut::new(), Vec::new());
        for part in bytes.chunks(piece) {
            buffer.extend_from_slice(part);
            while let Some(whole) = split_frame(&mut buffer, MAX_FRAME_BYTES).unwrap() {
                read.push(decode(whole).unwrap().0);
            }
        }
        prop_assert_eq!(read, commands);
    }

    #[test]
    fn any_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut buffer = BytesMut::from(&bytes[..]);
        let _ = split_frame(&mut buffer, MAX_FRAME_BYTES);
        let _ = decode(bytes.into());
    }

    #[test]
    fn any_header_never_panics(header in prop::collection::vec(any::<u8>(), 0..200), kind in 0u8..3) {
        let _ = decode(frame(kind, &header, b"body"));
    }

    #[test]
    fn any_json_header_never_panics(header in "[{}\\[\\]\":,a-fox0-9.eE+\\\\ -]{0,80}") {
        let _ = json(&header);
    }

    #[test]
    fn damaged_frames_never_panic(command in commands(), binary: bool, at in any::<prop::sample::Index>(), with in any::<u8>()) {
        let serialization = if binary { Serialization::Binary } else { Serialization::Json };
        let mut bytes = encoded(&command, serialization).to_vec();
        let at = at.index(bytes.len());
        bytes[at] = with;
        let _ = decode(bytes.into());
    }
}
