//! What people look at: it is what trainers get, it is bounded, and the page itself carries none of it.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod support;

use feedmill_protocol::bad::RowStatus;
use feedmill_protocol::frame::BatchView;
use feedmill_protocol::hash::hex;
use feedmill_vision::{Geometry, Grid, RgbImage, patches_to_rgb};
use serde_json::Value;
use support::{Answer, Served, document, golden, pipeline, processor_folder, served, settings, starting};

const SMALL: &str = ", minPixels: 4096, maxPixels: 32768";

fn yaml(processor: &tempfile::TempDir) -> String {
    let root = golden("");
    let root = root.display();
    let stream = |name: &str, shuffle: bool| {
        format!(
            "  - name: {name}\n    shuffle: {shuffle}\n    badSamples: Substitute\n    datasets: [{{name: golden, uri: \
             \"file://{root}/manifests/bad.jsonl\", imageBaseUri: \"file://{root}/\", recordFormat: Conversations, \
             percent: 150}}]\n"
        )
    };
    let uri = format!("file://{}/", processor.path().display());
    document(&uri, SMALL, &(stream("train", true) + &stream("plain", false)))
}

async fn worker() -> (Served, tempfile::TempDir) {
    let processor = processor_folder();
    (served(pipeline(&yaml(&processor)), &settings()).await, processor)
}

fn decoded(png: &[u8]) -> RgbImage {
    let mut reader = png::Decoder::new(std::io::Cursor::new(png)).read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    assert_eq!((info.color_type, info.bit_depth), (png::ColorType::Rgb, png::BitDepth::Eight));
    RgbImage { width: info.width, height: info.height, pixels }
}

fn lines(answer: &Answer) -> Vec<Value> {
    assert_eq!(answer.status, 200, "{answer:?}");
    let text = String::from_utf8(answer.body.clone()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Also a picture whose header is whole and whose pixels are not: its sample was shown as ok while another was served.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_shown_is_what_is_served() {
    let (worker, files) = worker().await;
    let config = std::fs::read(files.path().join("preprocessor_config.json")).unwrap();
    let geometry = Geometry::from_preprocessor_config(&serde_json::from_slice(&config).unwrap()).unwrap();
    let n = worker.get("/v1/plan").await.json()["streams"]["plain"]["samples_per_epoch"].as_u64().unwrap();
    let (mut replaced, mut pictures) = (0, 0);
    for position in 0..n {
        let batch = worker.get(&format!("/v1/streams/plain/batches/{position}-{}", position + 1)).await;
        let batch = BatchView::parse(&batch.body).unwrap();
        let served = &batch.samples()[0];
        let shown = worker.get(&format!("/v1/streams/plain/samples/{position}")).await.json();
        let status = match served.status {
            RowStatus::Ok => "ok",
            RowStatus::Substituted(class) => {
                replaced += 1;
                assert_eq!(shown["rejected"][0]["class"], class.name());
                "substituted"
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(shown["status"], status, "position {position}: {shown}");
        let sample = &shown["sample"];
        assert_eq!(sample["hash"], hex(&served.hash), "position {position}");
        let tokens = sample["token_list"].as_array().unwrap().iter().flat_map(|token| {
            let count = token["count"].as_u64().unwrap_or(1) as usize;
            std::iter::repeat_n((token["id"].as_i64().unwrap() as i32, token["supervised"] == true), count)
        });
        let row = served.tokens.iter().copied().zip(served.loss_mask.iter().map(|mask| *mask == 1));
        assert!(tokens.eq(row), "position {position}");
        let mut begin = 0;
        for (number, grid) in served.grids.iter().enumerate() {
            let [t, h, w] = grid.map(|side| u32::try_from(side).unwrap());
            let grid = Grid { t, h, w };
            let end = begin + grid.patch_bytes(&geometry);
            let answer =
                worker.get(&format!("/v1/streams/plain/samples/{position}/images/{number}.png")).await;
            assert_eq!(answer.header("content-type"), Some("image/png"), "{answer:?}");
            let expected = patches_to_rgb(&served.patches[begin..end], &grid, &geometry);
            assert!(decoded(&answer.body) == expected, "picture {number} at position {position}");
            pictures += 1;
            begin = end;
        }
    }
    assert!(replaced > 15 && pictures > 5, "{replaced} replaced, {pictures} pictures");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_is_found_where_the_order_puts_it() {
    let (worker, _files) = worker().await;
    let n = worker.get("/v1/plan").await.json()["streams"]["train"]["samples_per_epoch"].as_u64().unwrap();
    // Some good record with an id, by what is shown of it.
    for (stream, epoch) in [("train", 0), ("train", 3), ("plain", 1)] {
        let mut seen: Option<(String, Value, Vec<u64>)> = None;
        for position in epoch * n..(epoch + 1) * n {
            let shown = worker.get(&format!("/v1/streams/{stream}/samples/{position}")).await.json();
            let sample = &shown["sample"];
            let (true, Some(id)) = (shown["status"] == "ok", sample["id"].as_str()) else { continue };
            match &mut seen {
                None => seen = Some((id.into(), sample.clone(), vec![position])),
                Some((_, known, positions)) if known["record_index"] == sample["record_index"] => {
                    positions.push(position);
                }
                Some(_) => {}
            }
        }
        let (id, sample, positions) = seen.expect("a good record");
        let by_id = format!("id={id}");
        let by_line = format!("dataset=golden&line={}", sample["line"]);
        let by_record = format!("dataset=golden&record={}", sample["record_index"]);
        for query in [by_id, by_line, by_record] {
            let lines = lines(&worker.get(&format!("/v1/streams/{stream}/find?{query}&epoch={epoch}")).await);
            let all = lines.iter().filter_map(|line| line.get("found"));
            // Several records of this manifest have the same id.
            let found: Vec<&Value> =
                all.filter(|found| found["record_index"] == sample["record_index"]).collect();
            assert_eq!(found.len(), 1, "{query}: {lines:?}");
            assert_eq!(found[0]["line"], sample["line"], "{query}");
            assert_eq!(found[0]["record_index"], sample["record_index"], "{query}");
            assert_eq!(found[0]["positions"], serde_json::json!(positions), "{query} in epoch {epoch}");
            let last = lines.last().unwrap();
            assert_eq!((&last["done"], &last["scanned"]), (&true.into(), &last["of"]), "{query}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_search_for_nonsense_says_what_can_be_asked() {
    let (worker, _files) = worker().await;
    for (query, part) in [
        ("", "ask for an id"),
        ("id=a&line=3", "ask for an id"),
        ("line=3", "a dataset and one of"),
        ("dataset=golden", "one of its line and record"),
        ("dataset=none&line=1", "it has golden"),
        ("line=x&dataset=golden", "line"),
        ("id=a&limit=3", "limit"),
        ("id=a&epoch=-1", "epoch"),
    ] {
        let answer = worker.get(&format!("/v1/streams/train/find?{query}")).await;
        assert_eq!(answer.status, 400, "{query}: {answer:?}");
        assert!(answer.json()["detail"].as_str().unwrap().contains(part), "{query}: {answer:?}");
    }
    for (query, why) in [
        ("id=no-such-id", ""),
        ("dataset=golden&line=99999999", "there is no line 99999999: data set golden has "),
        ("dataset=golden&line=0", "there is no line 0: data set golden has "),
        (
            "dataset=golden&record=18446744073709551615",
            "there is no record 18446744073709551615: data set golden has ",
        ),
    ] {
        for epoch in [0, u64::MAX] {
            let lines = lines(&worker.get(&format!("/v1/streams/train/find?{query}&epoch={epoch}")).await);
            assert!(lines.iter().all(|line| line.get("found").is_none()), "{query}: {lines:?}");
            let last = lines.last().unwrap();
            assert_eq!(last["done"], true);
            assert!(last["why"].as_str().unwrap_or_default().starts_with(why), "{query}: {last}");
            assert_eq!(last.get("why").is_none(), why.is_empty(), "{query}: {last}");
        }
    }
    for path in [
        "/v1/streams/none/find?id=a",
        "/v1/streams/train/samples/0/images/0",
        "/v1/streams/train/samples/0/images/99.png",
        "/v1/streams/train/samples/9007199254740992/images/0.png",
    ] {
        assert_eq!(worker.get(path).await.status, 404, "{path}");
    }
    assert_eq!(worker.get("/v1/streams/train/samples/0/images/-1.png").await.status, 400);
}

/// Every step of a search waits for a place of its own, so one that nobody reads stops nobody. These readers take one
/// byte and no more.
#[tokio::test(flavor = "multi_thread")]
async fn a_search_that_is_not_read_or_given_up_holds_up_no_other() {
    use hyper_util::rt::{TokioExecutor, TokioIo};
    let (worker, _files) = worker().await;
    let socket = tokio::net::TcpStream::connect(worker.address).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(1)
        .handshake(TokioIo::new(socket))
        .await
        .unwrap();
    tokio::spawn(connection);
    let mut unread = Vec::new();
    for _ in 0..8 {
        let uri = format!("http://{}/v1/streams/train/find?id=x", worker.address);
        let request = hyper::Request::get(uri).body(String::new()).unwrap();
        let answer = sender.send_request(request).await.unwrap();
        assert_eq!(answer.status(), 200);
        let mut body = answer.into_body();
        // The first byte: this search has had its place.
        std::future::poll_fn(|context| hyper::body::Body::poll_frame(std::pin::Pin::new(&mut body), context))
            .await
            .unwrap()
            .unwrap();
        unread.push(body);
    }
    unread.truncate(4);
    let lines = lines(&worker.get("/v1/streams/train/find?id=x").await);
    assert_eq!(lines.last().unwrap()["done"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_carries_no_data_and_allows_nothing_but_itself() {
    let processor = processor_folder();
    let not_loaded = starting(pipeline(&yaml(&processor)), &settings()).await;
    let (loaded, _files) = worker().await;
    let (before, after) = (not_loaded.get("/").await, loaded.get("/").await);
    assert_eq!((before.status, &before.body), (200, &after.body), "the page depends on the data");
    let policy = after.header("content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'none'; script-src 'sha256-"), "{policy}");
    assert!(!policy.contains("unsafe"), "{policy}");
    assert_eq!(after.header("x-content-type-options"), Some("nosniff"));
    for path in ["/v1/streams/train/samples/0", "/v1/streams/train/find?id=a"] {
        let answer = loaded.get(path).await;
        assert_eq!(answer.header("cross-origin-resource-policy"), Some("same-origin"), "{path}");
        assert_eq!(answer.header("cache-control"), Some("no-store"), "{path}");
    }
}
