//! Takes the chart's values with their comments, gives the page that lists them.

use std::collections::HashMap;
use std::fmt::Write as _;

use serde_json::Value;

const HEAD: &str = "# The chart of Feedmill's operator\n\n\
    ```sh\n\
    helm install feedmill charts/feedmill --namespace feedmill-system --create-namespace\n\
    helm test feedmill --namespace feedmill-system   # an operator is at work\n\
    ```\n\n\
    [On Kubernetes](../../docs/install.md) says what is installed, [security](../../docs/security.md) with which rights, and\n\
    [operations](../../docs/operations.md) how monitoring is set up. `values.schema.json` refuses what makes no sense.\n\n\
    ## Values\n\n\
    Made from the comments of `values.yaml` by `make docs`.\n\n\
    | value | default | meaning |\n|---|---|---|\n";

/// One line of the table: a value, what it is by default, what it means. Groups have no default.
pub struct Line {
    pub path: String,
    pub default: Option<Value>,
    pub meaning: String,
}

/// The lines, in the order of the file. A comment stands above what it explains.
pub fn lines(text: &str) -> Vec<Line> {
    let values: Value = serde_saphyr::from_str(text).unwrap();
    let (mut open, mut comment): (Vec<(usize, String)>, Vec<&str>) = (Vec::new(), Vec::new());
    let mut found: Vec<(String, String)> = Vec::new();
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        let line = line.trim();
        if let Some(words) = line.strip_prefix("# ") {
            comment.push(words);
        } else if let Some((key, _)) = line.split_once(':').filter(|_| !line.starts_with('-')) {
            open.retain(|(other, _)| *other < indent);
            open.push((indent, key.to_owned()));
            let path: Vec<&str> = open.iter().map(|(_, key)| key.as_str()).collect();
            found.push((path.join("."), comment.join(" ")));
            comment.clear();
        }
    }
    let groups: HashMap<String, bool> = found
        .iter()
        .map(|(path, _)| {
            (path.clone(), found.iter().any(|(other, _)| other.starts_with(&format!("{path}."))))
        })
        .collect();
    let line = |(path, meaning): (String, String)| {
        let default = values.pointer(&format!("/{}", path.replace('.', "/"))).cloned();
        Line { default: default.filter(|_| !groups[&path]), path, meaning }
    };
    found.into_iter().map(line).filter(|line| line.default.is_some() || !line.meaning.is_empty()).collect()
}

/// The page.
pub fn page(text: &str) -> String {
    let mut page = HEAD.to_owned();
    for Line { path, default, meaning } in lines(text) {
        let default = default.map_or_else(String::new, |default| format!("`{default}`"));
        writeln!(page, "| `{path}` | {default} | {} |", meaning.replace('|', "\\|")).unwrap();
    }
    page
}
