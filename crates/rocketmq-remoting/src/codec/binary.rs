//! The ROCKETMQ header (`RocketMQSerializable`): code i16, language u8, version i16, opaque i32, flag i32, remark,
//! length of the fields i32, fields. Big endian; a remark and a value have a length of 32 bits, a name of 16.

use bytes::{BufMut, Bytes, BytesMut};

use super::CodecError;
use crate::command::{Command, ExtFields, Language, MAX_EXT_FIELDS};

pub(super) fn write(command: &Command, into: &mut BytesMut) -> Result<(), CodecError> {
    into.put_i16(i16::try_from(command.code).map_err(|_| CodecError::DoesNotFit("a code of more than 16 bits"))?);
    into.put_u8(command.language.number());
    into.put_i16(i16::try_from(command.version).map_err(|_| CodecError::DoesNotFit("a version of more than 16 bits"))?);
    into.put_i32(command.opaque);
    into.put_i32(command.flag);
    put_text(into, command.remark.as_deref().unwrap_or_default())?;
    let length_at = into.len();
    into.put_i32(0);
    for (name, value) in command.ext.iter() {
        into.put_i16(i16::try_from(name.len()).map_err(|_| CodecError::DoesNotFit("a field's name"))?);
        into.put_slice(name.as_bytes());
        put_text(into, value)?;
    }
    let length = i32::try_from(into.len() - length_at - 4).map_err(|_| CodecError::DoesNotFit("the fields"))?;
    if let Some(place) = into.get_mut(length_at..length_at + 4) {
        place.copy_from_slice(&length.to_be_bytes());
    }
    Ok(())
}

fn put_text(into: &mut BytesMut, text: &str) -> Result<(), CodecError> {
    into.put_i32(i32::try_from(text.len()).map_err(|_| CodecError::DoesNotFit("a text"))?);
    into.put_slice(text.as_bytes());
    Ok(())
}

pub(super) fn read(header: &[u8], body: Bytes) -> Result<Command, CodecError> {
    let mut rest = Reader(header);
    let code = i32::from(rest.i16("code")?);
    let language = Language::from_number(rest.u8("language")?);
    let version = i32::from(rest.i16("version")?);
    let opaque = rest.i32("opaque")?;
    let flag = rest.i32("flag")?;
    let remark_bytes = rest.i32("remark")?;
    let remark = rest.text(i64::from(remark_bytes), "remark")?;
    let ext_bytes = rest.i32("fields")?;
    let mut fields = Reader(rest.take(i64::from(ext_bytes.max(0)), "fields")?);
    let mut ext = ExtFields::default();
    let mut count = 0;
    while !fields.0.is_empty() {
        count += 1;
        if count > MAX_EXT_FIELDS {
            return Err(CodecError::Header("too many fields".into()));
        }
        let name_bytes = fields.i16("fields")?;
        let name = fields.text(i64::from(name_bytes), "fields")?;
        let value_bytes = fields.i32("fields")?;
        let value = fields.text(i64::from(value_bytes), "fields")?;
        ext.set(name, value);
    }
    Ok(Command { code, language, version, opaque, flag, remark: Some(remark).filter(|r| !r.is_empty()), ext, body })
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, bytes: i64, what: &'static str) -> Result<&'a [u8], CodecError> {
        let (taken, rest) = usize::try_from(bytes)
            .ok()
            .and_then(|bytes| self.0.split_at_checked(bytes))
            .ok_or(CodecError::Truncated(what))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], CodecError> {
        let (taken, rest) = self.0.split_first_chunk::<N>().ok_or(CodecError::Truncated(what))?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u8(&mut self, what: &'static str) -> Result<u8, CodecError> {
        Ok(u8::from_be_bytes(self.array(what)?))
    }

    fn i16(&mut self, what: &'static str) -> Result<i16, CodecError> {
        Ok(i16::from_be_bytes(self.array(what)?))
    }

    fn i32(&mut self, what: &'static str) -> Result<i32, CodecError> {
        Ok(i32::from_be_bytes(self.array(what)?))
    }

    /// Java replaces bytes that are not UTF-8 instead of refusing them, and so does this.
    fn text(&mut self, bytes: i64, what: &'static str) -> Result<String, CodecError> {
        Ok(String::from_utf8_lossy(self.take(bytes, what)?).into_owned())
    }
}
