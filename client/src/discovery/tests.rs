use super::*;

const AGAIN: Duration = Duration::from_secs(10);

fn endpoints(text: &str) -> Vec<Endpoint> {
    parse_list(text).unwrap()
}

fn shown(sources: &Sources) -> String {
    let found: Vec<String> = sources.endpoints().iter().map(ToString::to_string).collect();
    found.join(" ")
}

fn answers(name: &str, addresses: &[&str]) -> Findings {
    let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
    Findings { names: vec![(name.parse().unwrap(), Ok(addresses))], lists: Vec::new() }
}

#[test]
fn a_name_stands_for_all_its_addresses_and_keeps_them_when_it_fails() {
    let mut sources = Sources::new(endpoints("http://fleet:9, http://10.0.0.9:9"), &[]);
    let now = crate::chance::now();
    assert_eq!(shown(&sources), "http://10.0.0.9:9", "nothing is known of the name");
    let errands = sources.errands(now, AGAIN, false);
    assert_eq!(errands.names, endpoints("http://fleet:9"));
    assert_eq!(sources.errands(now + AGAIN / 2, AGAIN, false).names, [], "not yet again");
    assert_eq!(sources.errands(now + AGAIN / 2, AGAIN, true).names.len(), 1, "unless nobody can be asked");

    let found = ["10.0.0.2:9", "10.0.0.1:9", "[fd00::1]:9", "10.0.0.9:9", "10.0.0.1:9"];
    sources.found(answers("http://fleet:9", &found));
    assert_eq!(shown(&sources), "http://10.0.0.1:9 http://10.0.0.2:9 http://10.0.0.9:9 http://[fd00::1]:9");
    assert_eq!(sources.endpoints()[0].server_name(), "fleet");
    sources.found(answers("http://fleet:9", &["10.0.0.3:9"]));
    assert_eq!(shown(&sources), "http://10.0.0.3:9 http://10.0.0.9:9");

    sources.found(answers("http://fleet:9", &[]));
    let failed = io::Error::other("no such name");
    sources.found(Findings { names: vec![("http://fleet:9".parse().unwrap(), Err(failed))], lists: vec![] });
    assert_eq!(shown(&sources), "http://10.0.0.3:9 http://10.0.0.9:9");
    assert!(sources.faults().is_empty(), "there is somebody to ask");

    sources.give(endpoints("http://other"));
    assert_eq!(shown(&sources), "");
    let errands = sources.errands(now, AGAIN, false);
    assert_eq!(errands.names, endpoints("http://other"));
    let failed = io::Error::other("no such name");
    sources.found(Findings { names: vec![("http://other".parse().unwrap(), Err(failed))], lists: vec![] });
    assert_eq!(sources.faults(), [("http://other:8470".to_owned(), "no such name".to_owned())]);
}

#[test]
fn lists_have_addresses_and_comments() {
    let text = "# our fleet\nhttp://10.0.0.1:9 # the fast one\n\r\nhttp://10.0.0.2,http://fleet\n";
    let found: Vec<String> = endpoints(text).iter().map(ToString::to_string).collect();
    assert_eq!(found, ["http://10.0.0.1:9", "http://10.0.0.2:8470", "http://fleet:8470"]);
    let error = parse_list("http://10.0.0.1:9\nten.0.0.2:9").unwrap_err().to_string();
    assert!(error.contains("ten.0.0.2:9"), "{error}");
}

#[tokio::test]
async fn a_list_is_read_again_when_it_changes_and_stays_when_it_is_broken() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("workers");
    let mut sources = Sources::new(Vec::new(), std::slice::from_ref(&path));
    assert!(sources.change());
    let now = crate::chance::now();
    let nobody = |_| async { Ok(Vec::new()) };
    let cases = [
        (None, ""),
        (Some("http://10.0.0.1:9\n"), "http://10.0.0.1:9"),
        (Some("http://10.0.0.1:9\nhttp://10.0.0.2:9\n"), "http://10.0.0.1:9 http://10.0.0.2:9"),
        (Some("rubbish"), "http://10.0.0.1:9 http://10.0.0.2:9"),
        (Some("# nobody at all\n"), "http://10.0.0.1:9 http://10.0.0.2:9"),
        (None, "http://10.0.0.1:9 http://10.0.0.2:9"),
        (Some("http://10.0.0.3:9"), "http://10.0.0.3:9"),
    ];
    for (text, expected) in cases {
        match text {
            Some(text) => std::fs::write(&path, text).unwrap(),
            None => drop(std::fs::remove_file(&path)),
        }
        let errands = sources.errands(now, AGAIN, false);
        sources.found(run(errands, nobody).await);
        assert_eq!(shown(&sources), expected, "{text:?}");
        if expected.is_empty() {
            let faults = sources.faults();
            assert!(faults[0].0.starts_with("file:/") && faults[0].1.contains("No such file"), "{faults:?}");
        }
    }
    let known = sources.errands(now, AGAIN, false);
    let findings = run(known, nobody).await;
    assert!(matches!(findings.lists[..], [(_, Ok(None))]), "not read while it stays the same");
}

#[tokio::test]
async fn names_on_this_machine_are_resolved() {
    let localhost: Endpoint = "http://localhost:9".parse().unwrap();
    let found = resolve(localhost).await.unwrap();
    assert!(found.iter().all(|address| address.ip().is_loopback() && address.port() == 9), "{found:?}");
    assert!(!found.is_empty());
}
