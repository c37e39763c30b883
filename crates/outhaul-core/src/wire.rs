//! Variable-length integers and strings: what chunks and receipts are written in.

/// What a decoder met that it cannot read. The bytes are never trusted: no decoder panics or over-allocates.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot decode {what} at byte {at}")]
pub struct DecodeError {
    /// What was being read.
    pub what: &'static str,
    /// Where, in bytes of the uncompressed content.
    pub at: usize,
}

pub(crate) fn put_u64(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push((n as u8) | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

pub(crate) fn put_i64(out: &mut Vec<u8>, n: i64) {
    put_u64(out, ((n << 1) ^ (n >> 63)) as u64);
}

pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_u64(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// None is 0, a text of n bytes is n + 1.
pub(crate) fn put_optional(out: &mut Vec<u8>, text: Option<&str>) {
    match text {
        None => put_u64(out, 0),
        Some(t) => {
            put_u64(out, t.len() as u64 + 1);
            out.extend_from_slice(t.as_bytes());
        }
    }
}

pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(crate) const fn fail(&self, what: &'static str) -> DecodeError {
        DecodeError { what, at: self.at }
    }

    pub(crate) const fn at_end(&self) -> bool {
        self.at >= self.bytes.len()
    }

    pub(crate) fn u8(&mut self, what: &'static str) -> Result<u8, DecodeError> {
        let b = *self.bytes.get(self.at).ok_or(self.fail(what))?;
        self.at += 1;
        Ok(b)
    }

    pub(crate) fn u64(&mut self, what: &'static str) -> Result<u64, DecodeError> {
        let mut n = 0u64;
        for shift in (0..64).step_by(7) {
            let b = self.u8(what)?;
            let part = u64::from(b & 0x7f);
            if shift == 63 && part > 1 {
                break;
            }
            n |= part << shift;
            if b & 0x80 == 0 {
                return Ok(n);
            }
        }
        Err(self.fail(what))
    }

    pub(crate) fn i64(&mut self, what: &'static str) -> Result<i64, DecodeError> {
        let n = self.u64(what)?;
        Ok((n >> 1) as i64 ^ -((n & 1) as i64))
    }

    /// A count of things that each take at least one byte: never more than the bytes that are left.
    pub(crate) fn count(&mut self, what: &'static str) -> Result<usize, DecodeError> {
        let n = self.u64(what)?;
        usize::try_from(n).ok().filter(|n| *n <= self.bytes.len() - self.at).ok_or(self.fail(what))
    }

    fn take(&mut self, n: usize, what: &'static str) -> Result<&'a [u8], DecodeError> {
        let end = self.at.checked_add(n).ok_or(self.fail(what))?;
        let part = self.bytes.get(self.at..end).ok_or(self.fail(what))?;
        self.at = end;
        Ok(part)
    }

    pub(crate) fn bytes(&mut self, what: &'static str) -> Result<&'a [u8], DecodeError> {
        let n = self.count(what)?;
        self.take(n, what)
    }

    pub(crate) fn text(&mut self, what: &'static str) -> Result<String, DecodeError> {
        let bytes = self.bytes(what)?;
        String::from_utf8(bytes.to_vec()).map_err(|_| self.fail(what))
    }

    pub(crate) fn optional(&mut self, what: &'static str) -> Result<Option<String>, DecodeError> {
        match self.u64(what)? {
            0 => Ok(None),
            n => {
                let n = usize::try_from(n - 1).map_err(|_| self.fail(what))?;
                let bytes = self.take(n, what)?;
                String::from_utf8(bytes.to_vec()).map(Some).map_err(|_| self.fail(what))
            }
        }
    }
}

/// zstd level of everything that is stored: the cheapest; higher levels cost more time than they save bytes here.
const ZSTD_LEVEL: i32 = 1;

pub(crate) fn compress(content: &[u8]) -> Vec<u8> {
    // Compressing into memory has no way to fail; an empty frame would be refused by every reader, so nothing is lost.
    zstd::bulk::compress(content, ZSTD_LEVEL).unwrap_or_default()
}

/// Unpacks a frame, which must say its size itself: no more than that is allocated.
pub(crate) fn decompress(bytes: &[u8], limit_bytes: usize, what: &'static str) -> Result<Vec<u8>, DecodeError> {
    let refused = DecodeError { what, at: 0 };
    let size = zstd::zstd_safe::get_frame_content_size(bytes).ok().flatten();
    let size = size.and_then(|s| usize::try_from(s).ok()).filter(|s| *s <= limit_bytes).ok_or(refused.clone())?;
    zstd::bulk::decompress(bytes, size).map_err(|_| refused)
}
