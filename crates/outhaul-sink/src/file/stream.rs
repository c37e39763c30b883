//! Standard output, or a device: bytes that cannot be taken back.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use super::outcome::Failure;

/// Something that lines can only be appended to.
pub(super) struct Stream<W = File> {
    to: W,
    name: PathBuf,
    /// Bytes written so far.
    written: u64,
    /// What is missing of a line that was begun: it goes first, since nothing can be cut off.
    rest: Vec<u8>,
}

impl Stream {
    /// Standard output, without a buffer in between.
    pub(super) fn stdout() -> Result<Self, Failure> {
        use std::os::fd::AsFd as _;
        let name = Path::new("standard output");
        let fd = io::stdout().as_fd().try_clone_to_owned().map_err(|e| Failure::io("open", name, &e))?;
        Ok(Self::new(File::from(fd), name))
    }

    /// A device, such as a terminal.
    pub(super) fn device(path: &Path) -> Result<Self, Failure> {
        let file = File::options().append(true).open(path).map_err(|e| Failure::io("open", path, &e))?;
        Ok(Self::new(file, path))
    }
}

impl<W: Write> Stream<W> {
    fn new(to: W, name: &Path) -> Self {
        Self { to, name: name.to_owned(), written: 0, rest: Vec::new() }
    }

    /// Appends whole lines and tells how many bytes went before them.
    pub(super) fn append(&mut self, lines: &[u8]) -> Result<u64, Failure> {
        let rest = std::mem::take(&mut self.rest);
        self.put(&rest, true)?;
        let offset = self.written;
        self.put(lines, false)?;
        Ok(offset)
    }

    /// Writes all, or keeps what is missing of the line that was begun (`in_line`: before this call).
    fn put(&mut self, mut bytes: &[u8], mut in_line: bool) -> Result<(), Failure> {
        while !bytes.is_empty() {
            let error = match self.to.write(bytes) {
                Ok(0) => io::Error::from(ErrorKind::WriteZero),
                Ok(n) => {
                    let (done, todo) = bytes.split_at(n.min(bytes.len()));
                    in_line = done.last() != Some(&b'\n');
                    self.written += done.len() as u64;
                    bytes = todo;
                    continue;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => e,
            };
            if in_line {
                self.rest = bytes.split_inclusive(|b| *b == b'\n').next().unwrap_or_default().to_vec();
            }
            return Err(Failure::io("write to", &self.name, &error));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codes::SinkCode;

    /// Takes `room` bytes, then fails until it is given more.
    struct Narrow {
        room: usize,
        taken: Vec<u8>,
    }

    impl Write for Narrow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.room == 0 {
                return Err(ErrorKind::WouldBlock.into());
            }
            let n = bytes.len().min(self.room);
            self.room -= n;
            self.taken.extend_from_slice(&bytes[..n]);
            Ok(n)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_line_that_was_begun_is_finished_first() {
        for room in 0..12 {
            let mut stream = Stream::new(Narrow { room, taken: Vec::new() }, Path::new("narrow"));
            let failed = stream.append(b"first\nnext\n").is_err();
            assert_eq!(failed, room < 11);
            for more in [1, 100] {
                stream.to.room = more;
                let _ = stream.append(b"again\n");
            }
            let text = String::from_utf8(stream.to.taken).unwrap();
            assert!(text.ends_with("again\n"), "{room}: {text}");
            assert!(text.lines().all(|l| ["first", "next", "again"].contains(&l)), "{room}: {text}");
        }
    }

    #[test]
    fn a_reader_that_went_away_is_named() {
        let (reader, writer) = io::pipe().unwrap();
        let mut stream = Stream::new(writer, Path::new("standard output"));
        assert_eq!(stream.append(b"1\n"), Ok(0));
        assert_eq!(stream.append(b"2\n"), Ok(2));
        drop(reader);
        assert_eq!(stream.append(b"3\n").map_err(|f| f.code), Err(SinkCode::ReaderGone));
    }
}
