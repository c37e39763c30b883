//! The JSON header.

use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};

use super::CodecError;
use crate::command::{Command, ExtFields, Language, MAX_EXT_FIELDS};

pub(super) fn write(command: &Command, into: &mut BytesMut) -> Result<(), CodecError> {
    serde_json::to_writer(into.writer(), &Header(command)).map_err(|e| CodecError::Header(e.to_string()))
}

pub(super) fn read(header: &[u8], body: Bytes) -> Result<Command, CodecError> {
    let header: Read = serde_json::from_slice(header).map_err(|e| CodecError::Header(e.to_string()))?;
    let mut ext = ExtFields::default();
    for (name, value) in header.ext.0 {
        ext.set(name, value);
    }
    Ok(Command {
        code: header.code,
        language: header.language,
        version: header.version,
        opaque: header.opaque,
        flag: header.flag,
        remark: header.remark.filter(|r| !r.is_empty()),
        ext,
        body,
    })
}

struct Header<'a>(&'a Command);

impl Serialize for Header<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let command = self.0;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("code", &command.code)?;
        map.serialize_entry("language", command.language.name())?;
        map.serialize_entry("version", &command.version)?;
        map.serialize_entry("opaque", &command.opaque)?;
        map.serialize_entry("flag", &command.flag)?;
        if let Some(remark) = command.remark.as_deref().filter(|r| !r.is_empty()) {
            map.serialize_entry("remark", remark)?;
        }
        if !command.ext.is_empty() {
            map.serialize_entry("extFields", &Ext(&command.ext))?;
        }
        map.serialize_entry("serializeTypeCurrentRPC", "JSON")?;
        map.end()
    }
}

struct Ext<'a>(&'a ExtFields);

impl Serialize for Ext<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter())
    }
}

/// What is read of a header. A second field of the same name wins, as in Java; names that are not known are skipped.
struct Read {
    code: i32,
    language: Language,
    version: i32,
    opaque: i32,
    flag: i32,
    remark: Option<String>,
    ext: ReadExt,
}

impl<'de> Deserialize<'de> for Read {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Read;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a header object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Read, A::Error> {
                let mut code = None;
                let mut read = Read {
                    code: 0,
                    language: Language::Other,
                    version: 0,
                    opaque: 0,
                    flag: 0,
                    remark: None,
                    ext: ReadExt::default(),
                };
                while let Some(name) = map.next_key::<String>()? {
                    match name.as_str() {
                        "code" => code = Some(map.next_value()?),
                        "language" => {
                            read.language = match map.next_value::<Scalar>()?.0 {
                                Some(text) => {
                                    text.parse().map_or_else(|_| Language::from_name(&text), Language::from_number)
                                }
                                None => Language::Other,
                            };
                        }
                        "version" => read.version = map.next_value()?,
                        "opaque" => read.opaque = map.next_value()?,
                        "flag" => read.flag = map.next_value()?,
                        "remark" => read.remark = map.next_value()?,
                        "extFields" => read.ext = map.next_value::<Option<_>>()?.unwrap_or_default(),
                        _ => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                read.code = code.ok_or_else(|| serde::de::Error::missing_field("code"))?;
                Ok(read)
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

/// Fields as they come: values that are numbers or booleans become their text, `null` is dropped.
#[derive(Default)]
struct ReadExt(Vec<(String, String)>);

impl<'de> Deserialize<'de> for ReadExt {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = ReadExt;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of texts")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ReadExt, A::Error> {
                let mut fields = Vec::new();
                while let Some((name, Scalar(value))) = map.next_entry::<String, Scalar>()? {
                    if fields.len() == MAX_EXT_FIELDS {
                        return Err(serde::de::Error::custom("too many fields"));
                    }
                    if let Some(value) = value {
                        fields.push((name, value));
                    }
                }
                Ok(ReadExt(fields))
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

/// A text, number, boolean or null.
struct Scalar(Option<String>);

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl Visitor<'_> for Any {
            type Value = Scalar;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, number, boolean or null")
            }
            fn visit_str<E>(self, v: &str) -> Result<Scalar, E> {
                Ok(Scalar(Some(v.to_owned())))
            }
            fn visit_string<E>(self, v: String) -> Result<Scalar, E> {
                Ok(Scalar(Some(v)))
            }
            fn visit_bool<E>(self, v: bool) -> Result<Scalar, E> {
                Ok(Scalar(Some(v.to_string())))
            }
            fn visit_i64<E>(self, v: i64) -> Result<Scalar, E> {
                Ok(Scalar(Some(v.to_string())))
            }
            fn visit_u64<E>(self, v: u64) -> Result<Scalar, E> {
                Ok(Scalar(Some(v.to_string())))
            }
            fn visit_f64<E>(self, v: f64) -> Result<Scalar, E> {
                Ok(Scalar(Some(v.to_string())))
            }
            fn visit_unit<E>(self) -> Result<Scalar, E> {
                Ok(Scalar(None))
            }
        }
        deserializer.deserialize_any(Any)
    }
}
