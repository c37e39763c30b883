//! One frame: a request or an answer.

use bytes::Bytes;

use crate::code::{RequestCode, ResponseCode};

/// Bit of [`Command::flag`]: this is an answer.
pub const FLAG_ANSWER: i32 = 1;
/// Bit of [`Command::flag`]: no answer is wanted.
pub const FLAG_ONE_WAY: i32 = 1 << 1;
/// The most fields that a header may have; real ones have fewer than 40. More is refused by the codec.
pub const MAX_EXT_FIELDS: usize = 1_024;

/// A version of RocketMQ as headers carry it: an ordinal of the enum `MQVersion`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub i32);

impl Version {
    /// 4.9.4. What this crate sends: from here on name servers answer in standard JSON.
    pub const V4_9_4: Self = Self(401);
    /// 5.0.0: headers may carry `bname`, timer properties are honoured.
    pub const V5_0_0: Self = Self(413);
    /// 5.1.1: late commits can be refused with [`ResponseCode::IllegalOperation`].
    pub const V5_1_1: Self = Self(435);

    /// True for 5.0.0 and later.
    #[must_use]
    pub const fn is_5(self) -> bool {
        self.0 >= Self::V5_0_0.0
    }
}

/// `4.9.4` for 401. Since 4.0.0 (213) every release has two numbers, its snapshot's and its own, and every minor version
/// ten patches. What fits no release is `MQVersion n`.
impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            n @ 213.. if n % 2 == 1 => {
                let release = (n - 213) / 2;
                write!(f, "{}.{}.{}", 4 + release / 100, release / 10 % 10, release % 10)
            }
            n => write!(f, "MQVersion {n}"),
        }
    }
}

/// The language that a peer says it is written in (`LanguageCode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // the names say it all
#[non_exhaustive]
pub enum Language {
    Java,
    Cpp,
    DotNet,
    Python,
    Delphi,
    Erlang,
    Ruby,
    Other,
    Http,
    Go,
    Php,
    Oms,
    Rust,
    NodeJs,
    /// A number without a name here. JSON headers have names, so there it is written as `OTHER`.
    Unknown(u8),
}

impl Language {
    const NAMED: [(Self, u8, &'static str); 14] = [
        (Self::Java, 0, "JAVA"),
        (Self::Cpp, 1, "CPP"),
        (Self::DotNet, 2, "DOTNET"),
        (Self::Python, 3, "PYTHON"),
        (Self::Delphi, 4, "DELPHI"),
        (Self::Erlang, 5, "ERLANG"),
        (Self::Ruby, 6, "RUBY"),
        (Self::Other, 7, "OTHER"),
        (Self::Http, 8, "HTTP"),
        (Self::Go, 9, "GO"),
        (Self::Php, 10, "PHP"),
        (Self::Oms, 11, "OMS"),
        (Self::Rust, 12, "RUST"),
        (Self::NodeJs, 13, "NODE_JS"),
    ];

    /// The number in ROCKETMQ headers.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::Unknown(number) => number,
            named => Self::NAMED.iter().find(|(l, ..)| *l == named).map_or(7, |(_, number, _)| *number),
        }
    }

    /// The name in JSON headers.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMED.iter().find(|(l, ..)| *l == self).map_or("OTHER", |(.., name)| name)
    }

    /// The language with this number.
    #[must_use]
    pub fn from_number(number: u8) -> Self {
        Self::NAMED.iter().find(|(_, n, _)| *n == number).map_or(Self::Unknown(number), |(l, ..)| *l)
    }

    /// The language with this name; [`Self::Other`] if there is none.
    #[must_use]
    pub fn from_name(name: &str) -> Self {
        Self::NAMED.iter().find(|(.., n)| *n == name).map_or(Self::Other, |(l, ..)| *l)
    }
}

/// The named fields of a header, in the order in which they were set. Never holds an empty value: the ROCKETMQ form
/// cannot tell it from an absent one, and the signature of a request would not match (rocketmq.md B.3).
#[derive(Clone, Default, PartialEq, Eq)]
pub struct ExtFields(Vec<(String, String)>);

impl ExtFields {
    /// The value of a field.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// Sets a field; with an empty value the field is left out.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<String>) {
        let (name, value) = (name.into(), value.into());
        if value.is_empty() || name.is_empty() {
            self.remove(&name);
        } else if let Some((_, old)) = self.0.iter_mut().find(|(n, _)| *n == name) {
            *old = value;
        } else {
            self.0.push((name, value));
        }
    }

    /// Takes a field out.
    pub fn remove(&mut self, name: &str) {
        self.0.retain(|(n, _)| n != name);
    }

    /// All fields.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// How many fields there are.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// True without any field.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Names of the fields only: values can be signatures, keys or payload.
impl std::fmt::Debug for ExtFields {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

/// One frame, a request or an answer. [`crate::codec`] turns it into bytes and back.
#[derive(Clone, PartialEq, Eq)]
pub struct Command {
    /// A [`RequestCode`] or, in an answer, a [`ResponseCode`].
    pub code: i32,
    /// Who speaks.
    pub language: Language,
    /// The [`Version`] of who speaks. ROCKETMQ headers have 16 bits for it.
    pub version: i32,
    /// Pairs an answer with its request; chosen by the connection.
    pub opaque: i32,
    /// [`FLAG_ANSWER`] and [`FLAG_ONE_WAY`].
    pub flag: i32,
    /// An answer's explanation. Never empty: that is `None`, in both serialisations.
    pub remark: Option<String>,
    /// The named fields.
    pub ext: ExtFields,
    /// The body, without the header.
    pub body: Bytes,
}

impl Command {
    /// A request of this crate: language RUST, version 4.9.4, opaque 0.
    #[must_use]
    pub fn request(code: RequestCode) -> Self {
        Self {
            code: code.number(),
            language: Language::Rust,
            version: Version::V4_9_4.0,
            opaque: 0,
            flag: 0,
            remark: None,
            ext: ExtFields::default(),
            body: Bytes::new(),
        }
    }

    /// The answer to a request of a peer, with the request's opaque.
    #[must_use]
    pub fn answer_to(request: &Self, code: ResponseCode, remark: Option<String>) -> Self {
        Self {
            code: code.number(),
            opaque: request.opaque,
            flag: FLAG_ANSWER,
            remark: remark.filter(|r| !r.is_empty()),
            ..Self::request(RequestCode::Unknown(0))
        }
    }

    /// The same with one more field; an empty value is left out.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        self.ext.set(name, value.to_string());
        self
    }

    /// The same with one more field if there is a value.
    #[must_use]
    pub fn with_optional(self, name: &str, value: Option<impl ToString>) -> Self {
        match value {
            Some(value) => self.with(name, value),
            None => self,
        }
    }

    /// The same with this body.
    #[must_use]
    pub fn with_body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    /// The same, for which no answer is wanted.
    #[must_use]
    pub const fn one_way(mut self) -> Self {
        self.flag |= FLAG_ONE_WAY;
        self
    }

    /// True for an answer.
    #[must_use]
    pub const fn is_answer(&self) -> bool {
        self.flag & FLAG_ANSWER != 0
    }

    /// True if no answer is wanted.
    #[must_use]
    pub const fn is_one_way(&self) -> bool {
        self.flag & FLAG_ONE_WAY != 0
    }

    /// The code of a request.
    #[must_use]
    pub const fn request_code(&self) -> RequestCode {
        RequestCode::from_number(self.code)
    }

    /// The code of an answer.
    #[must_use]
    pub const fn response_code(&self) -> ResponseCode {
        ResponseCode::from_number(self.code)
    }

    /// The version of who speaks.
    #[must_use]
    pub const fn version(&self) -> Version {
        Version(self.version)
    }
}

/// Without the values of fields and without the body: they hold payload and, in a broker's configuration, passwords.
impl std::fmt::Debug for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = f.debug_struct("Command");
        if self.is_answer() {
            out.field("answer", &self.response_code());
        } else {
            out.field("request", &self.request_code());
        }
        out.field("language", &self.language)
            .field("version", &self.version)
            .field("opaque", &self.opaque)
            .field("flag", &self.flag)
            .field("remark", &self.remark)
            .field("ext", &self.ext)
            .field("body_bytes", &self.body.len())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_read_as_releases() {
        for (number, text) in
            [(399, "4.9.3"), (401, "4.9.4"), (409, "4.9.8"), (413, "5.0.0"), (433, "5.1.0"), (479, "5.3.3")]
        {
            assert_eq!(Version(number).to_string(), text);
        }
        assert_eq!(Version(121).to_string(), "MQVersion 121");
        assert_eq!(Version(400).to_string(), "MQVersion 400");
        assert_eq!(Version(i32::MAX).to_string().matches('.').count(), 2);
        assert_eq!(Version(i32::MIN).to_string(), "MQVersion -2147483648");
        assert_eq!(Version::V5_1_1.to_string(), "5.1.1");
        assert!(Version::V5_0_0.is_5() && !Version(411).is_5());
    }

    #[test]
    fn languages_have_the_numbers_of_language_code() {
        assert_eq!(Language::Rust.number(), 12);
        assert_eq!(Language::Rust.name(), "RUST");
        assert_eq!(Language::from_number(13), Language::NodeJs);
        assert_eq!(Language::from_number(99).number(), 99);
        assert_eq!(Language::from_name("JAVA"), Language::Java);
        assert_eq!(Language::from_name("COBOL"), Language::Other);
    }

    #[test]
    fn a_field_without_a_value_is_left_out() {
        let mut command =
            Command::request(RequestCode::HeartBeat).with("a", "").with("b", 1).with_optional("c", None::<i32>);
        assert_eq!(command.ext.iter().collect::<Vec<_>>(), [("b", "1")]);
        command.ext.set("b", "2");
        assert_eq!(command.ext.get("b"), Some("2"));
        command.ext.set("b", "");
        assert!(command.ext.is_empty());
    }

    #[test]
    fn debug_shows_no_values() {
        let command = Command::request(RequestCode::SendMessageV2).with("i", "secret").with_body("payload");
        let text = format!("{command:?}");
        assert!(text.contains("SendMessageV2") && text.contains("\"i\""), "{text}");
        assert!(!text.contains("secret") && !text.contains("payload"), "{text}");
    }
}
