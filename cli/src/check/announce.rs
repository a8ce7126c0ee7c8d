//! Takes how many requests pictures need, says it, and asks or refuses when they are many.

use std::io::{BufRead as _, IsTerminal as _};

use anyhow::bail;
use feedmill_worker::check::{Pictures, Requests};

use crate::args::CheckArguments;
use crate::output::tell;
use crate::table::count;

/// So many requests are made without asking: under a cent at AWS, a minute at most.
const FEW: u64 = 10_000;

/// What to do about so many requests.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Go,
    Ask,
    Refuse,
}

fn answer(s3: u64, max: u64, yes: bool, terminal: bool) -> Answer {
    if s3 > max {
        Answer::Refuse
    } else if terminal && !yes && s3 > FEW {
        Answer::Ask
    } else {
        Answer::Go
    }
}

fn said(requests: &Requests, pictures: Pictures) -> String {
    let about = if requests.exact { "" } else { "about " };
    let what = match pictures {
        Pictures::Decode => "read whole and decoded",
        _ => "looked at by their first bytes",
    };
    let s3 = match requests.s3 {
        0 => "none of them on S3".to_owned(),
        s3 => format!("{about}{} requests at S3", count(s3)),
    };
    format!(
        "records name {} pictures in storage, {about}{} different ones; they will be {what}: {s3}",
        count(requests.pictures),
        count(requests.different)
    )
}

/// Announces the requests; asks on a terminal when they are many.
///
/// # Errors
/// More than `--max-requests`, or somebody who does not want them.
pub fn ask(requests: &Requests, pictures: Pictures, arguments: &CheckArguments) -> anyhow::Result<()> {
    let said = said(requests, pictures);
    tell(&said);
    let terminal = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
    match answer(requests.s3, arguments.max_requests, arguments.yes, terminal) {
        Answer::Go => Ok(()),
        Answer::Refuse => bail!(
            "{} requests are more than --max-requests {}; raise it, or look at fewer records with --sample N",
            count(requests.s3),
            count(arguments.max_requests)
        ),
        Answer::Ask => {
            eprint!("go on? [y/N] ");
            let mut line = String::new();
            std::io::stdin().lock().read_line(&mut line)?;
            if matches!(line.trim(), "y" | "Y" | "yes") {
                return Ok(());
            }
            bail!("not gone on with; --yes goes on without asking")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_requests_are_asked_about_and_too_many_refused() {
        for (s3, max, yes, terminal, expected) in [
            (0, 0, false, true, Answer::Go),
            (FEW, 1 << 20, false, true, Answer::Go),
            (FEW + 1, 1 << 20, false, true, Answer::Ask),
            (FEW + 1, 1 << 20, true, true, Answer::Go),
            (FEW + 1, 1 << 20, false, false, Answer::Go),
            (101, 100, true, true, Answer::Refuse),
            (101, 100, false, false, Answer::Refuse),
        ] {
            assert_eq!(answer(s3, max, yes, terminal), expected, "{s3} of {max}");
        }
    }

    #[test]
    fn estimates_say_so() {
        let mut requests = Requests { pictures: 12_345, different: 1000, exact: true, s3: 1000 };
        let text = said(&requests, Pictures::Headers);
        assert!(text.contains("12,345 pictures") && text.contains(": 1,000 requests at S3"), "{text}");
        requests.exact = false;
        assert!(said(&requests, Pictures::Decode).contains("about 1,000 requests"));
        requests.s3 = 0;
        assert!(said(&requests, Pictures::Decode).contains("none of them on S3"));
    }
}
