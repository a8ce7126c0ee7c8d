//! The page at `/` of a real worker, and the page that `feedmill show --html` writes, in a real browser.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use feedmill_protocol::frame::BatchView;
use feedmill_testkit::browser::{Browser, Tab};
use feedmill_vision::{Geometry, Grid, patches_to_rgb};
use serde_json::{Value, json};

use support::{Worker, example, run, said};

const WINDOW: (u32, u32) = (1000, 900);

/// What would do something if any of it were taken for more than text.
const HOSTILE: &str = "</script><script>alert(1)</script></style><img src=x onerror=alert(2)>javascript:alert(3)\u{202e}gpj\u{7}\u{1b}[2J";

fn record(id: &str, image: &str, answer: &str) -> Value {
    json!({"id": id, "image": image, "conversations": [
        {"from": "human", "value": format!("<image>What is it, {answer}?")}, {"from": "gpt", "value": answer},
    ]})
}

/// Two streams over these records in their order: train shuffles nothing, eval does.
fn pipeline(records: &[Value]) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let bucket = std::fs::canonicalize(example("bucket")).unwrap();
    let bucket = bucket.display();
    let lines: String = records.iter().map(|record| format!("{record}\n")).collect();
    std::fs::write(folder.path().join("data.jsonl"), lines).unwrap();
    let datasets = format!(
        "[{{name: photos, uri: \"file://{}/data.jsonl\", imageBaseUri: \"file://{bucket}/images/\", recordFormat: Conversations}}]",
        folder.path().display()
    );
    let text = format!(
        "apiVersion: feedmill.dev/v1alpha1\nkind: DataPipeline\nmetadata: {{name: page}}\nspec:\n  \
         processor: {{uri: \"file://{bucket}/processor/\", minPixels: 4096, maxPixels: 65536}}\n  \
         limits: {{maxImagePixels: 30000000, maxImageBytes: 32Mi, maxSampleBytes: 64Mi}}\n  \
         cache: {{sharedMemory: 128Mi, fetch: 160Mi, decode: 1Gi}}\n  streams:\n  \
         - {{name: train, shuffle: false, badSamples: Substitute, datasets: {datasets}}}\n  \
         - {{name: eval, shuffle: true, badSamples: Substitute, datasets: {datasets}}}\n"
    );
    let path = folder.path().join("pipeline.yaml");
    std::fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (folder, path)
}

/// Position 1 is replaced: its picture does not exist.
fn photos() -> (tempfile::TempDir, String) {
    let mut records: Vec<Value> =
        ["temple/roof-1.webp", "none.jpg", "coffee/crema-1.png", "rocket/pad-2.webp"]
            .iter()
            .enumerate()
            .map(|(number, image)| record(&format!("photo-{number}"), image, "a picture"))
            .collect();
    records.extend(
        (4..30).map(|number| record(&format!("photo-{number}"), "coffee/crema-1.png", "é 🦜, twice")),
    );
    pipeline(&records)
}

/// The first picture at a position as its patches say, R G B.
fn expected(pipeline: &str, position: u64) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("batch");
    let range = format!("{position}-{}", position + 1);
    let output = run(&["get", pipeline, &range, "-o", path.to_str().unwrap()]);
    assert!(output.status.success(), "{}", said(&output));
    let frame = std::fs::read(path).unwrap();
    let batch = BatchView::parse(&frame).unwrap();
    let sample = &batch.samples()[0];
    let config = std::fs::read(example("bucket/processor/preprocessor_config.json")).unwrap();
    let geometry = Geometry::from_preprocessor_config(&serde_json::from_slice(&config).unwrap()).unwrap();
    let [t, h, w] = sample.grids[0].map(|side| u32::try_from(side).unwrap());
    patches_to_rgb(sample.patches, &Grid { t, h, w }, &geometry).pixels
}

/// The first picture as the browser shows it, R G B.
fn pixels(tab: &mut Tab<'_>) -> Vec<u8> {
    let text = tab.eval(
        "(() => {
            const image = document.querySelector('#shown img');
            const canvas = new OffscreenCanvas(image.naturalWidth, image.naturalHeight);
            const context = canvas.getContext('2d');
            context.drawImage(image, 0, 0);
            const rgba = context.getImageData(0, 0, canvas.width, canvas.height).data;
            let text = '';
            for (let at = 0; at < rgba.length; at += 4) text += String.fromCharCode(rgba[at], rgba[at + 1], rgba[at + 2]);
            return btoa(text);
        })()",
    );
    BASE64.decode(text.as_str().unwrap()).unwrap()
}

fn shown(tab: &mut Tab<'_>, stream: &str, position: u64) {
    tab.until(&format!("document.body.dataset.shown === '{stream}/{position}'"));
}

fn text(tab: &mut Tab<'_>, selector: &str) -> String {
    tab.eval(&format!("document.querySelector('{selector}').textContent")).as_str().unwrap().to_owned()
}

fn has(tab: &mut Tab<'_>, selector: &str, parts: &[&str]) {
    let text = text(tab, selector);
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {selector}:\n{text}");
    }
}

/// Sends the form of the search, and waits for its end.
fn find(tab: &mut Tab<'_>, kind: &str, wanted: &str) {
    let wanted = json!(wanted);
    tab.eval(&format!(
        "(() => {{
            delete document.body.dataset.found;
            document.getElementById('kind').value = '{kind}';
            document.getElementById('wanted').value = {wanted};
            document.getElementById('search').click();
        }})()"
    ));
    tab.until("document.body.dataset.found !== undefined");
}

#[test]
fn the_workers_page_shows_samples_as_the_trainer_gets_them() {
    let (_folder, pipeline) = photos();
    let worker = Worker::start(&pipeline);
    let mut browser = Browser::start();
    let mut tab = browser.open(&format!("{}/", worker.url), WINDOW);
    shown(&mut tab, "train", 0);
    has(&mut tab, "#status", &["The assigned record stands here", "sample 0 of epoch 0"]);
    has(
        &mut tab,
        "#shown",
        &["photo-0", "temple/roof-1.webp", "original: WebP, 1037×695 pixels", "image tokens"],
    );
    assert!(pixels(&mut tab) == expected(&pipeline, 0), "the browser's pixels are not the patches'");

    // Stepping: by key, by button, by number; at the first position nothing is before it.
    assert_eq!(tab.eval("document.getElementById('previous').disabled"), true);
    tab.press("ArrowRight");
    shown(&mut tab, "train", 1);
    has(&mut tab, "#status", &["Another record stands here"]);
    has(
        &mut tab,
        ".rejected",
        &["photos line 2", "image_missing", "none.jpg", "what to do", "upload the object"],
    );
    assert!(
        pixels(&mut tab) == expected(&pipeline, 1),
        "the pixels are not those of the record that stands in"
    );
    tab.press("ArrowLeft");
    shown(&mut tab, "train", 0);
    tab.eval("document.getElementById('next').click()");
    shown(&mut tab, "train", 1);
    tab.eval("document.getElementById('position').value = 7; document.querySelector('#jump button').click()");
    shown(&mut tab, "train", 7);
    tab.eval("document.getElementById('position').focus()");
    tab.press("ArrowLeft");
    assert_eq!(tab.eval("document.body.dataset.shown"), "train/7", "arrows in a field move its cursor");

    // What is learnt has another colour, and is what the loss mask says.
    let colours = tab.eval(
        "(() => {
            const colour = (node) => getComputedStyle(node).backgroundColor;
            const tokens = [...document.querySelectorAll('#tokens .token')];
            return {
                learnt: tokens.filter((token) => colour(token) === colour(document.querySelector('.legend .learnt'))).map((token) => token.textContent).join(''),
                all: tokens.map((token) => token.textContent).join(''),
                ids: tokens.map((token) => Number(token.dataset.id)),
            };
        })()",
    );
    assert_eq!(colours["learnt"], "é 🦜, twice<|im_end|>⏎\n", "{colours}");
    assert!(colours["all"].as_str().unwrap().starts_with("<|im_start|>user"), "{colours}");
    assert!(colours["ids"].as_array().unwrap().iter().all(|id| id.as_i64().is_some()), "{colours}");

    // Search: by id, by line, for what is not there; in the other stream, where the order is another.
    find(&mut tab, "", "photo-12");
    has(&mut tab, "#found", &["photos line 13: position 12"]);
    find(&mut tab, "1", "3");
    has(&mut tab, "#found", &["photos line 3: position 2"]);
    find(&mut tab, "", "photo-99");
    has(&mut tab, "#found", &["There is no such record"]);
    tab.eval("(() => { const stream = document.getElementById('stream'); stream.value = 'eval'; stream.dispatchEvent(new Event('change')); })()");
    shown(&mut tab, "eval", 0);
    find(&mut tab, "", "photo-12");
    let position = tab.eval("Number(document.querySelector('#found button').textContent)").as_u64().unwrap();
    tab.eval("document.querySelector('#found button').click()");
    shown(&mut tab, "eval", position);
    assert_eq!(text(&mut tab, "#record-id"), "photo-12");

    // The worker itself, and what was bad so far.
    tab.until("document.querySelector('#bad table') !== null");
    has(&mut tab, "#worker", &["ready", "sha256:", "arena", "fetch", "decode", "asked for and not made yet"]);
    has(&mut tab, "#bad", &["photos line 2", "image_missing", "none.jpg", "upload the object"]);
    assert_eq!(tab.complaints(), Vec::<String>::new());
    assert_eq!(tab.requests_elsewhere(&[&worker.url, "data:", "blob:"]), Vec::<String>::new());
}

#[test]
fn a_saved_page_needs_no_worker() {
    let (folder, pipeline) = photos();
    let path = folder.path().join("samples.html");
    let output = run(&["show", &pipeline, "1", "--html", path.to_str().unwrap(), "--count", "3"]);
    assert!(output.status.success(), "{}", said(&output));
    let address = format!("file://{}", path.display());
    let mut browser = Browser::start();
    let mut tab = browser.open(&address, WINDOW);
    shown(&mut tab, "train", 1);
    has(&mut tab, ".rejected", &["photos line 2", "image_missing"]);
    assert!(pixels(&mut tab) == expected(&pipeline, 1), "the file's pixels are not the patches'");
    tab.press("ArrowRight");
    tab.press("ArrowRight");
    shown(&mut tab, "train", 3);
    assert_eq!(tab.eval("document.getElementById('next').disabled"), true);
    has(&mut tab, "#shown", &["photo-3", "rocket/pad-2.webp"]);
    find(&mut tab, "", "photo-2");
    has(&mut tab, "#found", &["photos line 3: position 2"]);
    assert_eq!(tab.complaints(), Vec::<String>::new());
    assert_eq!(tab.requests_elsewhere(&[&address, "data:"]), Vec::<String>::new());
}

#[test]
fn what_records_say_is_text_and_does_nothing() {
    let key = "\"><img src=x onerror=alert(4)>\u{202e}.jpg";
    let records = [record(HOSTILE, "coffee/crema-1.png", HOSTILE), record(HOSTILE, key, HOSTILE)];
    let (folder, pipeline) = pipeline(&records);
    let worker = Worker::start(&pipeline);
    let path = folder.path().join("samples.html");
    let output = run(&["show", &pipeline, "0", "--html", path.to_str().unwrap(), "--count", "2"]);
    assert!(output.status.success(), "{}", said(&output));
    let mut browser = Browser::start();
    let mut tab = browser.open("about:blank", WINDOW);
    for address in [format!("{}/", worker.url), format!("file://{}", path.display())] {
        tab.go(&address);
        shown(&mut tab, "train", 0);
        // The text stands there as it is, what cannot be seen as its code.
        let visible =
            HOSTILE.replace('\u{202e}', "\\u{202e}").replace('\u{7}', "\\u{7}").replace('\u{1b}', "\\u{1b}");
        for selector in ["#tokens", "#record-id", ".message .text"] {
            has(&mut tab, selector, &[&visible]);
        }
        find(&mut tab, "", HOSTILE);
        has(&mut tab, "#found", &["photos line 1", "position"]);
        tab.press("ArrowRight");
        shown(&mut tab, "train", 1);
        has(&mut tab, ".rejected", &["image_missing", "\"><img src=x onerror=alert(4)>\\u{202e}.jpg"]);
        let scripts = tab.eval("document.scripts.length").as_u64().unwrap();
        assert_eq!(scripts, if address.starts_with("file") { 2 } else { 1 });
        assert_eq!(tab.eval("document.querySelectorAll('[onerror], img[src=x], a[href]').length"), 0);
        assert_eq!(tab.eval("/[\\u202e\\u0007\\u001b]/.test(document.body.textContent.replace(document.getElementById('data')?.textContent ?? '', ''))"), false);
    }
    assert_eq!(tab.complaints(), Vec::<String>::new());
    assert_eq!(
        tab.requests_elsewhere(&[&worker.url, "file://", "about:blank", "data:", "blob:"]),
        Vec::<String>::new()
    );
    // And if markup got in all the same: the policy lets nothing run that is not the page's own.
    for address in [format!("{}/", worker.url), format!("file://{}", path.display())] {
        tab.go(&address);
        shown(&mut tab, "train", 0);
        let refused = tab.eval("(() => { try { document.body.innerHTML = '<b>x</b>'; return false; } catch { return true; } })()");
        assert_eq!(refused, true, "{address}");
    }
}

/// Every control has a name, text stands out from what is behind it, and nothing is wider than a phone.
#[test]
fn the_page_can_be_read_by_all_in_light_and_dark_and_on_a_phone() {
    let (_folder, pipeline) = photos();
    let worker = Worker::start(&pipeline);
    let mut browser = Browser::start();
    let mut tab = browser.open(&format!("{}/#train/1", worker.url), WINDOW);
    shown(&mut tab, "train", 1);
    tab.until("document.querySelector('#bad table') !== null");
    let unnamed = tab.eval(
        "[...document.querySelectorAll('button, input, select, img')].filter((node) =>
            !(node.labels?.[0]?.textContent.trim() || node.alt || node.textContent.trim())).map((node) => node.outerHTML)",
    );
    assert_eq!(unnamed, json!([]));
    let mut papers = Vec::new();
    for (size, dark) in [((1000, 900), false), ((1000, 900), true), ((360, 740), false), ((360, 740), true)] {
        tab.resize(size, dark);
        papers.push(tab.eval("getComputedStyle(document.body).backgroundColor"));
        let wider = tab.eval("document.documentElement.scrollWidth - document.documentElement.clientWidth");
        assert_eq!(wider, 0, "{size:?} scrolls sideways");
        // WCAG 2.2, 1.4.3: 4.5 to 1.
        let faint = tab.eval(
            "(() => {
                const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
                const light = ([r, g, b]) => [r, g, b].map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
                    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
                const behind = (node) => {
                    const colour = numbers(getComputedStyle(node).backgroundColor);
                    return colour[3] === 0 ? behind(node.parentElement) : colour;
                };
                return [...document.querySelectorAll('body *')].filter((node) => {
                    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
                    if (!own || node.disabled || node.closest('[hidden], .hidden, script, noscript')) return false;
                    const [a, b] = [light(numbers(getComputedStyle(node).color)), light(behind(node))].sort((a, b) => b - a);
                    return (a + 0.05) / (b + 0.05) < 4.5;
                }).map((node) => node.outerHTML.slice(0, 200));
            })()",
        );
        assert_eq!(faint, json!([]), "dark: {dark}");
    }
    assert_ne!(papers[0], papers[1], "dark looks like light");
    assert_eq!(tab.complaints(), Vec::<String>::new());
}

/// What the other tests rely on: nothing that a page does wrong goes unseen.
#[test]
fn what_a_page_does_wrong_is_seen() {
    let folder = tempfile::tempdir().unwrap();
    for (number, (page, complaint)) in [
        ("<script>alert(1)</script>", "javascriptDialogOpening"),
        ("<script>throw new Error('x')</script>", "exceptionThrown"),
        ("<script>console.error('x')</script>", "consoleAPICalled"),
        (
            "<meta http-equiv='Content-Security-Policy' content=\"script-src 'none'\"><script>1</script>",
            "ContentSecurityPolicy",
        ),
        ("<img src='none.png'>", "entryAdded"),
    ]
    .into_iter()
    .enumerate()
    {
        let path = folder.path().join(format!("{number}.html"));
        std::fs::write(&path, page).unwrap();
        let mut browser = Browser::start();
        let complaints = browser.open(&format!("file://{}", path.display()), WINDOW).complaints();
        assert!(complaints.iter().any(|one| one.contains(complaint)), "{page}: {complaints:#?}");
    }
}

/// The pictures in docs/show.md; `make screenshots` takes them again.
#[test]
fn pictures_of_the_page() {
    let folder = tempfile::tempdir().unwrap();
    let bucket = support::bucket();
    let pipeline = example("pipeline.yaml");
    let mut browser = Browser::start();
    let mut tab = browser.open("about:blank", WINDOW);
    let mut bytes = 0;
    // An ordinary sample on a desk; one that is replaced on a phone.
    for (name, position, size, dark) in
        [("show-sample", 62, (860, 1150), false), ("show-substituted", 63, (390, 900), true)]
    {
        let page = folder.path().join("page.html");
        let position_text = position.to_string();
        let page_text = page.to_str().unwrap();
        let arguments = [
            "show",
            pipeline.to_str().unwrap(),
            &position_text,
            "--embedded-s3",
            &bucket,
            "--html",
            page_text,
        ];
        let output = run(&arguments);
        assert!(output.status.success(), "{}", said(&output));
        tab.resize(size, dark);
        tab.go("about:blank");
        tab.go(&format!("file://{}", page.display()));
        shown(&mut tab, "train", position);
        assert_eq!(
            tab.eval("document.querySelectorAll('.rejected').length > 0"),
            dark,
            "another sample stands there now"
        );
        let png = tab.screenshot();
        bytes += png.len();
        if std::env::var_os("FEEDMILL_WRITE_SCREENSHOTS").is_some() {
            let folder = example("../../docs/images");
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join(format!("{name}.png")), png).unwrap();
        }
    }
    // They are loaded with the README.
    assert!((10_000..300_000).contains(&bytes), "the pictures have {bytes} bytes");
    assert_eq!(tab.complaints(), Vec::<String>::new());
}

/// The page itself is open to all, and has no data; what it asks for, it asks with the token that a person gives it.
#[test]
fn a_guarded_workers_page_asks_for_the_token() {
    let (folder, pipeline) = photos();
    let tokens = folder.path().join("tokens");
    let token = "page-token-0123456789";
    std::fs::write(&tokens, token).unwrap();
    let worker = Worker::start_with(&pipeline, &["--token-file", tokens.to_str().unwrap()]);
    let mut browser = Browser::start();
    let mut tab = browser.open(&format!("{}/", worker.url), WINDOW);
    let give = |tab: &mut Tab<'_>, token: &str| {
        tab.until("!document.getElementById('locked').hidden");
        tab.eval(&format!(
            "(() => {{
                document.getElementById('token').value = {};
                document.querySelector('#locked button').click();
            }})()",
            json!(token)
        ));
    };
    give(&mut tab, "wrong-token-0123456789");
    tab.until("document.getElementById('summary').textContent.includes('not admitted')");
    has(&mut tab, "#summary", &["locked"]);
    assert_eq!(tab.eval("document.body.dataset.shown === undefined"), true);
    give(&mut tab, token);
    shown(&mut tab, "train", 0);
    assert!(pixels(&mut tab) == expected(&pipeline, 0), "the browser's pixels are not the patches'");
    // It is kept nowhere that another page or another port could see.
    let kept = "document.cookie + localStorage.length + sessionStorage.length + location.href + document.documentElement.outerHTML";
    let kept = tab.eval(kept).as_str().unwrap().to_owned();
    assert!(kept.starts_with("00http://") && !kept.contains(token), "{kept}");
    assert_eq!(tab.eval("document.getElementById('token').value"), "");
}
