//! One statement: SQL with its values kept apart, so that it travels as text where it fits, and with its values as
//! they are where their literals would not fit into the server's packet.

use mysql_async::Value;

use super::values::{hex, literal};

/// A part of a statement.
#[derive(Clone, Debug, PartialEq)]
enum Piece {
    Sql(String),
    Text(String),
    Bytes(Vec<u8>),
}

/// A statement under construction.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Statement {
    pieces: Vec<Piece>,
    /// Length as text, bytes, at most.
    text_bytes: usize,
    /// Length with values as they are, bytes, at most.
    raw_bytes: usize,
}

impl Statement {
    pub(super) fn new(sql: impl AsRef<str>) -> Self {
        let mut statement = Self::default();
        statement.push(sql.as_ref());
        statement
    }

    /// Adds SQL.
    pub(super) fn push(&mut self, sql: &str) -> &mut Self {
        self.text_bytes += sql.len();
        self.raw_bytes += sql.len();
        match self.pieces.last_mut() {
            Some(Piece::Sql(last)) => last.push_str(sql),
            _ => self.pieces.push(Piece::Sql(sql.to_owned())),
        }
        self
    }

    /// Adds a number.
    pub(super) fn push_number(&mut self, n: impl std::fmt::Display) -> &mut Self {
        self.push(&n.to_string())
    }

    /// Adds a text.
    pub(super) fn push_text(&mut self, text: impl Into<String>) -> &mut Self {
        let text = text.into();
        self.text_bytes += 2 * text.len() + 2;
        self.raw_bytes += text.len() + 16;
        self.pieces.push(Piece::Text(text));
        self
    }

    /// Adds a text, or NULL.
    pub(super) fn push_text_opt(&mut self, text: Option<&str>) -> &mut Self {
        match text {
            Some(text) => self.push_text(text),
            None => self.push("NULL"),
        }
    }

    /// Adds bytes.
    pub(super) fn push_bytes(&mut self, bytes: impl Into<Vec<u8>>) -> &mut Self {
        let bytes = bytes.into();
        self.text_bytes += 2 * bytes.len() + 3;
        self.raw_bytes += bytes.len() + 16;
        self.pieces.push(Piece::Bytes(bytes));
        self
    }

    /// Adds bytes, or NULL.
    pub(super) fn push_bytes_opt(&mut self, bytes: Option<&[u8]>) -> &mut Self {
        match bytes {
            Some(bytes) => self.push_bytes(bytes),
            None => self.push("NULL"),
        }
    }

    /// Adds all of another one.
    pub(super) fn append(&mut self, other: Self) -> &mut Self {
        for piece in other.pieces {
            match piece {
                Piece::Sql(sql) => self.push(&sql),
                Piece::Text(text) => self.push_text(text),
                Piece::Bytes(bytes) => self.push_bytes(bytes),
            };
        }
        self
    }

    /// An upper bound of its length as text, bytes.
    pub(super) const fn text_bytes(&self) -> usize {
        self.text_bytes
    }

    /// An upper bound of its length with values as they are, bytes.
    pub(super) const fn raw_bytes(&self) -> usize {
        self.raw_bytes
    }

    /// As text.
    pub(super) fn text(&self) -> String {
        let mut out = String::with_capacity(self.text_bytes);
        for piece in &self.pieces {
            match piece {
                Piece::Sql(sql) => out.push_str(sql),
                Piece::Text(text) => out.push_str(&literal(text)),
                Piece::Bytes(bytes) => out.push_str(&hex(bytes)),
            }
        }
        out
    }

    /// With a question mark for each value, and the values.
    pub(super) fn with_values(&self) -> (String, Vec<Value>) {
        let (mut sql, mut values) = (String::new(), Vec::new());
        for piece in &self.pieces {
            match piece {
                Piece::Sql(part) => sql.push_str(part),
                Piece::Text(text) => {
                    sql.push('?');
                    values.push(Value::Bytes(text.clone().into_bytes()));
                }
                Piece::Bytes(bytes) => {
                    sql.push('?');
                    values.push(Value::Bytes(bytes.clone()));
                }
            }
        }
        (sql, values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_text_and_with_values() {
        let mut s = Statement::new("INSERT INTO t VALUES (");
        s.push_number(7)
            .push(", ")
            .push_text("it's ?")
            .push(", ")
            .push_bytes(vec![1, 255])
            .push(", ")
            .push_text_opt(None)
            .push(")");
        assert_eq!(s.text(), "INSERT INTO t VALUES (7, 'it''s ?', x'01ff', NULL)");
        let (sql, values) = s.with_values();
        assert_eq!(sql, "INSERT INTO t VALUES (7, ?, ?, NULL)");
        assert_eq!(values, [Value::Bytes(b"it's ?".to_vec()), Value::Bytes(vec![1, 255])]);
        assert!(s.text().len() <= s.text_bytes() && s.raw_bytes() < s.text_bytes() + 32);
    }
}
