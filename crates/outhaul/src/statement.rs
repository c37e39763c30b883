//! SQL with its values, in the words of each database.

use std::fmt::Write as _;

use crate::driver::Dialect;

/// A statement with the values of its parameters: `?` in MySQL, MariaDB and SQLite, `$1` and so on in PostgreSQL.
#[derive(Clone, Debug, Default)]
pub struct Statement<'a> {
    /// The text.
    pub sql: String,
    /// The parameters, in order.
    pub values: Vec<Value<'a>>,
    /// The text is the same for every call, so that preparing it once is worth its place in the driver's cache.
    pub repeats: bool,
}

/// The value of a parameter.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Value<'a> {
    /// Text, or NULL of the type text.
    Text(Option<&'a str>),
    /// Bytes.
    Bytes(&'a [u8]),
    /// A whole number, or NULL of its type.
    Number(Option<i64>),
}

impl std::fmt::Debug for Value<'_> {
    /// Not what it holds: values do not belong into a log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Text(text) => write!(f, "Text({} bytes)", text.map_or(0, str::len)),
            Self::Bytes(bytes) => write!(f, "Bytes({})", bytes.len()),
            Self::Number(_) => f.write_str("Number"),
        }
    }
}

impl<'a> Statement<'a> {
    pub(crate) fn new(sql: impl Into<String>) -> Self {
        Self { sql: sql.into(), values: Vec::new(), repeats: true }
    }

    pub(crate) fn push(&mut self, sql: &str) {
        self.sql.push_str(sql);
    }

    /// A parameter, with what stands around it.
    pub(crate) fn value(&mut self, dialect: Dialect, (before, after): (&str, &str), value: Value<'a>) {
        self.values.push(value);
        self.sql.push_str(before);
        match dialect {
            Dialect::Postgres => _ = write!(self.sql, "${}", self.values.len()),
            Dialect::MySql | Dialect::Sqlite => self.sql.push('?'),
        }
        self.sql.push_str(after);
    }

    /// Text that goes into a column of text as these very bytes. In MySQL a parameter has the character set of the
    /// session, which is the application's choice, so that it is said here that it is UTF-8.
    pub(crate) fn text(&mut self, dialect: Dialect, value: Option<&'a str>) {
        let around = match dialect {
            Dialect::MySql => ("CONVERT(CAST(", " AS BINARY) USING utf8mb4)"),
            Dialect::Postgres => ("", "::text"),
            Dialect::Sqlite => ("", ""),
        };
        self.value(dialect, around, Value::Text(value));
    }

    /// Text for a column that holds bytes in MySQL, and text elsewhere: ids, keys, consumers.
    pub(crate) fn name(&mut self, dialect: Dialect, value: Option<&'a str>) {
        let around = match dialect {
            Dialect::MySql => ("CAST(", " AS BINARY)"),
            Dialect::Postgres => ("", "::text"),
            Dialect::Sqlite => ("", ""),
        };
        self.value(dialect, around, Value::Text(value));
    }
}

/// An identifier, quoted.
pub(crate) fn quoted(dialect: Dialect, name: &str) -> String {
    match dialect {
        Dialect::MySql => format!("`{}`", name.replace('`', "``")),
        Dialect::Postgres | Dialect::Sqlite => format!("\"{}\"", name.replace('"', "\"\"")),
    }
}
