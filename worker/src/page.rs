//! The page on which people look at samples: one document without anything from elsewhere, and without data.
//!
//! ```text
//!  page.html + page.css + page.js ─┬─► live: a worker serves it at `/`; it asks the worker's other paths for data
//!                                  └─► saved: a file with samples in it, which needs no worker
//! ```
//!
//! Records are written by strangers. So the page allows no script and no style but its own, by their hashes, turns no text
//! into markup, and fetches nothing from anywhere but where it came from.

use std::sync::LazyLock;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::Value;
use sha2::{Digest, Sha256};

const HTML: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");

/// A page and what a browser may do with it.
pub struct Page {
    /// The document.
    pub html: String,
    /// Value of its header `content-security-policy`.
    pub policy: String,
}

/// The page that a worker serves.
pub static LIVE: LazyLock<Page> = LazyLock::new(|| {
    // Pictures are fetched by the script and shown from memory; `data:` is the empty icon.
    let policy = policy("img-src blob: data:; connect-src 'self'; frame-ancestors 'none'");
    Page { html: filled("", ""), policy }
});

/// A page in a file: what stands before its samples, between two of them, and after them. Each sample is one object as
/// `GET /v1/streams/{stream}/samples/{position}` gives it, with `pictures`, a list of addresses like [`data_address`]'s.
#[must_use]
pub fn saved() -> [String; 3] {
    let policy = policy("img-src data:");
    let tag = format!("<meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">");
    let html = filled(&tag, "<script type=\"application/json\" id=\"data\">{\"samples\":[\n\n]}</script>");
    let (before, after) = html.split_once("\n\n]}").unwrap_or((&html, ""));
    [format!("{before}\n"), ",\n".into(), format!("\n]}}{after}")]
}

/// JSON that may stand between the tags of a script element: nothing in it can end the element.
#[must_use]
pub fn embedded(value: &Value) -> String {
    // `<` stands in strings alone.
    value.to_string().replace('<', "\\u003c")
}

/// A picture as an address that holds it.
#[must_use]
pub fn data_address(png: &[u8]) -> String {
    format!("data:image/png;base64,{}", BASE64.encode(png))
}

fn filled(policy: &str, data: &str) -> String {
    HTML.replace("<!--policy-->", policy)
        .replace("<!--data-->", data)
        .replace("/*style*/", STYLE)
        .replace("/*script*/", SCRIPT)
}

fn policy(more: &str) -> String {
    let hash = |text: &str| BASE64.encode(Sha256::digest(text.as_bytes()));
    format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; {more}; base-uri 'none'; \
         form-action 'none'; require-trusted-types-for 'script'",
        hash(SCRIPT),
        hash(STYLE)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// What is hashed is what stands between the tags, and nothing in it ends the element.
    #[test]
    fn script_and_style_stand_as_they_are_hashed() {
        for (html, data) in [(LIVE.html.clone(), 0), (saved().concat(), 1)] {
            assert_eq!(html.matches("<script").count(), 1 + data);
            assert_eq!(html.matches("</script>").count(), 1 + data);
            assert!(html.contains(&format!("<script>{SCRIPT}</script>")));
            assert!(html.contains(&format!("<style>{STYLE}</style>")));
            assert!(!html.contains("http://") && !html.contains("https://"), "something from elsewhere");
        }
    }

    #[test]
    fn data_cannot_end_its_element() {
        let value = json!({"text": "</script><script>alert(1)</script><!--", "n": 1});
        let text = embedded(&value);
        assert!(!text.contains('<'));
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value);
        let [before, between, after] = saved();
        let html = format!("{before}{text}{between}{text}{after}");
        let (_, rest) = html.split_once("id=\"data\">").unwrap();
        let (data, _) = rest.split_once("</script>").unwrap();
        assert_eq!(serde_json::from_str::<Value>(data).unwrap()["samples"], json!([value, value]));
    }
}
