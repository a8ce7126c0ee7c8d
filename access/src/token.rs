//! Takes a file's text or a header, gives tokens.
//!
//! A file has one token a line; the first is the one that a client sends, a worker admits all of them, so that a new
//! one can be added before the old one goes. Empty lines and lines that begin with `#` are left out, as are spaces and
//! carriage returns round a token. A token has the characters of RFC 6750, section 2.1.

use std::fmt;

use http::{HeaderMap, HeaderValue, header};
use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConstantTimeEq as _};

/// 16 characters of base64 are 96 bits when they are random: beyond any number of requests.
const SHORTEST: usize = 16;
/// A signed token (JWT) of some claims has a thousand bytes; headers as a whole have 16 KiB.
const LONGEST: usize = 4096;
/// A rotation needs two. Each one costs a comparison on every request.
const MOST: usize = 64;

/// A bearer token; `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// What is wrong with a token or a file of them; the line is 1-based.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Nothing is in it.
    #[error("it has no token; write one a line")]
    None,
    /// Nothing is in it, and one token should be.
    #[error("it is empty")]
    Empty,
    /// Bytes that are no text.
    #[error("it is no text")]
    NotText,
    /// Too easily guessed.
    #[error(
        "the token in line {line} has fewer than {SHORTEST} characters; make one with `openssl rand -hex 32`"
    )]
    TooShort {
        /// Where.
        line: usize,
    },
    /// No header would hold it.
    #[error("the token in line {line} has more than {LONGEST} characters")]
    TooLong {
        /// Where.
        line: usize,
    },
    /// A header could not carry it as it is.
    #[error(
        "the token in line {line} has a character that is not allowed; letters, digits, - . _ ~ + / and = at the end \
         are"
    )]
    Character {
        /// Where.
        line: usize,
    },
    /// More than a rotation can need.
    #[error("it has more than {MOST} tokens")]
    TooMany,
}

impl Token {
    /// A token as it is given in words; spaces and line ends round it are left out.
    ///
    /// # Errors
    /// Too short, too long, or with characters that no header carries.
    pub fn new(text: &str) -> Result<Self, TokenError> {
        let text = text.trim_matches(|c: char| c.is_ascii_whitespace());
        if text.is_empty() {
            return Err(TokenError::None);
        }
        Self::in_line(text, 1)
    }

    /// The token of another server than a worker, which a file holds alone. How long it must be is for whoever made it to say.
    ///
    /// # Errors
    /// Too long, or with characters that no header carries.
    pub(crate) fn alone(bytes: &[u8]) -> Result<Self, TokenError> {
        let text = std::str::from_utf8(bytes).map_err(|_| TokenError::NotText)?.trim_ascii();
        if text.is_empty() {
            return Err(TokenError::Empty);
        }
        match Self::in_line(text, 1) {
            Err(TokenError::TooShort { .. }) => Ok(Self(text.to_owned())),
            other => other,
        }
    }

    fn in_line(text: &str, line: usize) -> Result<Self, TokenError> {
        let body = text.trim_end_matches('=');
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~+/".contains(&byte);
        if body.is_empty() || !body.bytes().all(plain) {
            return Err(TokenError::Character { line });
        }
        match text.len() {
            length if length < SHORTEST => Err(TokenError::TooShort { line }),
            length if length > LONGEST => Err(TokenError::TooLong { line }),
            _ => Ok(Self(text.to_owned())),
        }
    }

    /// The value of the header `authorization`, marked so that nobody shows or keeps it.
    pub(crate) fn header(&self) -> Option<HeaderValue> {
        let mut value = HeaderValue::from_str(&format!("Bearer {}", self.0)).ok()?;
        value.set_sensitive(true);
        Some(value)
    }
}

/// The tokens of a file, at least one.
pub(crate) fn parse(bytes: &[u8]) -> Result<Vec<Token>, TokenError> {
    let text = std::str::from_utf8(bytes).map_err(|_| TokenError::NotText)?;
    // Editors of other systems put a mark before the text.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut tokens = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim_matches(|c: char| c.is_ascii_whitespace());
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if tokens.len() == MOST {
            return Err(TokenError::TooMany);
        }
        tokens.push(Token::in_line(line, number + 1)?);
    }
    if tokens.is_empty() { Err(TokenError::None) } else { Ok(tokens) }
}

/// The tokens that a worker admits: their hashes, so that the tokens themselves are in no dump of its memory.
#[derive(Clone)]
pub(crate) struct Admitted(Vec<[u8; 32]>);

impl Admitted {
    pub(crate) fn of(tokens: &[Token]) -> Self {
        Self(tokens.iter().map(|token| Sha256::digest(token.0.as_bytes()).into()).collect())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the token is one of them. Takes the same time whichever it is and wherever it differs: hashes of equal
    /// length are compared, each with all.
    pub(crate) fn admits(&self, token: &[u8]) -> bool {
        let hash: [u8; 32] = Sha256::digest(token).into();
        let any = self.0.iter().fold(Choice::from(0), |any, admitted| any | admitted.ct_eq(&hash));
        any.into()
    }
}

/// The bearer token of a request; None without one, and with more than one header of that name.
pub(crate) fn presented(headers: &HeaderMap) -> Option<&[u8]> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let value = values.next()?.as_bytes();
    if values.next().is_some() {
        return None;
    }
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "0123456789abcdef-A";
    const B: &str = "0123456789abcdef-B";

    #[test]
    fn files_give_tokens_or_say_which_line_is_wrong() {
        let short = "a".repeat(15);
        let long = "a".repeat(4097);
        let many = format!("{A}\n").repeat(65);
        let cases: [(String, Result<Vec<&str>, TokenError>); 18] = [
            (A.into(), Ok(vec![A])),
            (format!("{A}\n"), Ok(vec![A])),
            (format!("{A}\r\n{B}\r\n"), Ok(vec![A, B])),
            (format!("\u{feff}# new, then old\n\n  {A}\t\n\n{B}"), Ok(vec![A, B])),
            (format!("{A}=="), Ok(vec!["0123456789abcdef-A=="])),
            (String::new(), Err(TokenError::None)),
            ("\n\r\n \n# nothing\n".into(), Err(TokenError::None)),
            (short.clone(), Err(TokenError::TooShort { line: 1 })),
            (format!("{A}\n{short}"), Err(TokenError::TooShort { line: 2 })),
            (long, Err(TokenError::TooLong { line: 1 })),
            (many, Err(TokenError::TooMany)),
            (format!("{A} {B}"), Err(TokenError::Character { line: 1 })),
            (format!("Bearer {A}"), Err(TokenError::Character { line: 1 })),
            (format!("{A}é"), Err(TokenError::Character { line: 1 })),
            (format!("{A}\0"), Err(TokenError::Character { line: 1 })),
            (format!("{A}\r{B}"), Err(TokenError::Character { line: 1 })),
            (format!("{A}=x"), Err(TokenError::Character { line: 1 })),
            ("=".repeat(20), Err(TokenError::Character { line: 1 })),
        ];
        for (text, expected) in cases {
            let expected = expected.map(|tokens| tokens.iter().map(|token| Token((*token).into())).collect());
            let got = parse(text.as_bytes());
            if let Err(error) = &got {
                assert!(!error.to_string().contains("0123456789"), "{error}");
            }
            assert_eq!(got, expected, "{text:?}");
        }
        assert_eq!(parse(b"\xff\xfe0123456789abcdef"), Err(TokenError::NotText));
    }

    #[test]
    fn a_token_that_a_file_holds_alone_may_be_short() {
        let cases: [(&[u8], Result<&str, TokenError>); 8] = [
            (A.as_bytes(), Ok(A)),
            (b" \t0123456789abcdef-A\r\n", Ok(A)),
            (b"short\n", Ok("short")),
            (b"", Err(TokenError::Empty)),
            (b" \n", Err(TokenError::Empty)),
            (b"Bearer x", Err(TokenError::Character { line: 1 })),
            (b"one\ntwo", Err(TokenError::Character { line: 1 })),
            (b"\xff", Err(TokenError::NotText)),
        ];
        for (bytes, expected) in cases {
            assert_eq!(Token::alone(bytes), expected.map(|text| Token(text.into())), "{bytes:?}");
        }
        assert_eq!(Token::alone(&[b'a'; 4097]), Err(TokenError::TooLong { line: 1 }));
    }

    #[test]
    fn only_a_whole_token_is_admitted() {
        let admitted = Admitted::of(&[Token::new(A).unwrap(), Token::new(B).unwrap()]);
        assert!(admitted.admits(A.as_bytes()) && admitted.admits(B.as_bytes()));
        let longer = format!("{A}A");
        for wrong in ["", "0", &A[1..], &A[..A.len() - 1], &longer, &A.to_uppercase()] {
            assert!(!admitted.admits(wrong.as_bytes()), "{wrong:?}");
        }
    }

    #[test]
    fn headers_carry_one_token_or_none() {
        let cases: [(&[&str], Option<&str>); 12] = [
            (&["Bearer abc"], Some("abc")),
            (&["bearer abc"], Some("abc")),
            (&["BEARER  abc "], Some("abc")),
            (&["Bearer "], Some("")),
            (&["Bearer"], None),
            (&["Bearer\tabc"], None),
            (&["Bearerabc"], None),
            (&["Basic abc"], None),
            (&["abc"], None),
            (&[""], None),
            (&["Bearer abc", "Bearer abc"], None),
            (&["Basic eA==", "Bearer abc"], None),
        ];
        for (values, expected) in cases {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(header::AUTHORIZATION, value.parse().unwrap());
            }
            assert_eq!(presented(&headers), expected.map(str::as_bytes), "{values:?}");
        }
        assert_eq!(presented(&HeaderMap::new()), None);
    }

    #[test]
    fn a_token_is_in_no_debug_text() {
        let token = Token::new(A).unwrap();
        let shown = format!("{token:?} {:?}", token.header().unwrap());
        assert!(!shown.contains(&A[..8]), "{shown}");
    }
}
