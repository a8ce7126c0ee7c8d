//! Programs that tests run where they are there; `tools/NAME.sh` knows where, and gets them with `make test`.

use std::io::Write as _;
use std::path::Path;
use std::process::Command;

/// A program of `tools`, in the repository's root; none where it is not there, which is told with what is left out.
pub fn tool(name: &str, left_out: &str) -> Option<Command> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let found = Command::new(root.join(format!("tools/{name}.sh"))).arg("--found").output().unwrap();
    if !found.status.success() {
        // Not by a macro: what a test that succeeds prints by those is not shown.
        let told = format!("{left_out}: SKIPPED (1 test): there is no {name}; `make {name}` gets it\n");
        std::io::stderr().write_all(told.as_bytes()).unwrap();
        return None;
    }
    let mut command = Command::new(String::from_utf8(found.stdout).unwrap().trim_end());
    command.current_dir(root);
    Some(command)
}
